"""Peak bytes of every stage of every preset: counted tensor by tensor in a dry run, and planned.

`python tests/bench/bench_memory.py [--output FILE] [PRESET ...]` runs each preset whole, on any machine without
its GPUs, and prints bytes and the error of the plan in percent; the file keeps them. Both are without the compiler,
which fake tensors would not get through, so without async tensor parallel too. Exits 1 where a stage is off by
more than 5 %. Takes four minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.dryrun import dry_run
from engine.keys import with_values
from engine.planner.plan import plan

GIB = 1 << 30
WITHIN_PCT = 5
EAGER = {"compile.enable": False, "parallelism.enable_async_tensor_parallel": False}


def presets() -> list[str]:
    """Names of all presets."""
    return sorted(file.name.removesuffix(".toml") for file in files("presets").iterdir() if file.name.endswith(".toml"))


def stages(name: str) -> Iterator[dict[str, Any]]:
    """One row for each stage of a preset."""
    values = tomllib.loads(files("presets").joinpath(f"{name}.toml").read_text("utf-8"))
    config = with_values(Config.model_validate(values), EAGER)
    resolved = plan(config)
    for row, stage in zip(dry_run(config, resolved), resolved.stages, strict=True):
        assert row["error"] is None, row["error"]
        planned = stage.memory.peak_bytes
        assert planned is not None, "a plan says its peak"
        yield {
            "preset": name,
            "pp_rank": stage.pp_rank,
            "counted_bytes": row["peak_bytes"],
            "planned_bytes": planned,
            "moment": stage.memory.moment,
            "error_pct": round(100 * (planned / row["peak_bytes"] - 1), 2),
        }


def main() -> None:
    """Runs the presets that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PRESET")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.names or presets():
        for row in stages(name):
            rows.append(row)
            print(
                f"{name:16} stage {row['pp_rank']}: counted {row['counted_bytes'] / GIB:8.3f} GiB,"
                f" planned {row['planned_bytes'] / GIB:8.3f} ({row['error_pct']:+.2f} %), {row['moment']}",
                flush=True,
            )
    errors = [abs(row["error_pct"]) for row in rows]
    print(f"{len(rows)} stages: mean error {sum(errors) / len(errors):.2f} %, largest {max(errors):.2f} %")
    if options.output is not None:
        kept = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "compile": False, "stages": rows}
        options.output.write_text(json.dumps(kept, indent=1) + "\n")
    if max(errors) > WITHIN_PCT:
        sys.exit(1)


if __name__ == "__main__":
    main()
