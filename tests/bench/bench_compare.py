"""What reading runs to compare takes: a rank 0 of 100,000 logged steps, alone and with the ends of 511 more ranks.

`python tests/bench/bench_compare.py [--output tests/bench/compare.json]` prints seconds of this process's CPU, the best
of three, and the size of what was read. A benchmark, not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.events import event_file
from titancli.compare.beside import beside
from titancli.compare.reading import Run, read_run

STEPS, RANKS, TIMES = 100_000, 512, 3
BREAKDOWN = {"data_s": 0.001, "compute_s": None, "exposed_comm_s": None, "bubble_s": None, "host_s": None}


def lines(rank: int, steps: int) -> list[str]:
    """What a rank writes: a start, and for each step its memory, its meters and the step."""
    memory = {"active_bytes": 1 << 33, "reserved_bytes": 1 << 34, "peak_reserved_bytes": 1 << 35, "host_rss_bytes": 1}
    meters = dict.fromkeys(("sm_pct", "tensor_pct", "dram_pct", "nvlink_rx_bytes_per_s", "power_w"), 71.234567)
    figures = {"grad_norm": 1.234567890123, "lr": 3e-4, "tokens": 8000, "slots": 8192, "step_s": 0.512345678901}
    rates = {
        "tokens_per_s_per_gpu": 15999.123456789,
        "mfu_pct": 41.23456789,
        "breakdown": {**BREAKDOWN, "other_s": 0.5},
    }
    told: list[dict[str, Any]] = [{"kind": "run_started", "world_size": RANKS, "plan": None, "resumed_from": None}]
    for step in range(1, steps + 1):
        told += [{"kind": "memory", **memory}, {"kind": "gpu", **meters}]
        told.append({"kind": "step", "step": step, "loss": 2 + 8 / (1 + step / 500), **figures, **rates})
    head = {"v": 1, "time": 1.8e9, "rank": rank}
    return [json.dumps({**head, **event}, separators=(",", ":")) for event in told]


def write(run: Path, ranks: int) -> None:
    """A run folder of so many ranks."""
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text(f"[training]\nsteps = {STEPS}\n", "utf-8")
    for rank in range(ranks):
        event_file(run, rank).write_text("\n".join(lines(rank, 2000 if rank else STEPS)) + "\n", "utf-8")


def timed(run: Path) -> tuple[float, Run]:
    """Seconds of the CPU that the best of some readings took, and what was read."""
    best, read = float("inf"), None
    for _ in range(TIMES):
        began_s = time.process_time()
        read = read_run(run)
        best = min(best, time.process_time() - began_s)
    assert read is not None
    return best, read


def main() -> None:
    """Writes the runs, reads them, prints and keeps what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    seen: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "cpus": os.cpu_count()}
    seen |= {"load_before": os.getloadavg()[0], "steps": STEPS, "ranks": RANKS}
    with tempfile.TemporaryDirectory() as folder:
        alone, wide = Path(folder) / "alone", Path(folder) / "wide"
        write(alone, 1)
        write(wide, RANKS)
        seen["rank_0_mib"] = round(event_file(alone, 0).stat().st_size / (1 << 20), 1)
        seen["one_rank_s"], first = timed(alone)
        seen["all_ranks_s"], second = timed(wide)
        began_s = time.process_time()
        beside([first, second])
        seen["beside_s"] = time.process_time() - began_s
    seen["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    text = json.dumps(
        {key: round(value, 3) if isinstance(value, float) else value for key, value in seen.items()}, indent=1
    )
    print(text)
    if output is not None:
        output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
