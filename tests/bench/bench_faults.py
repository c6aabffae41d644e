"""Faults that befall real runs: what was tried, how often, and what survived.

`python tests/bench/bench_faults.py [--tries 3] [--only NAME ...] [--seed N]` starts `titan launch` over and
over, lets each fault strike at a random moment, and holds what is left to what must be true of it (tests/world). It
writes faults.json beside itself and exits 1 where a try did not survive; `--markdown` prints the kept table instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "world"))

from fault_row import Fault
from fault_trial import Trial, Undisturbed
from faults import FAULTS

RESULTS = Path(__file__).with_name("faults.json")


def main() -> None:
    """Tries faults and keeps what came of them."""
    asked = _arguments()
    if asked.markdown:
        print(table(json.loads(RESULTS.read_text("utf-8"))["faults"]))
        return
    chosen = [row for name, row in FAULTS.items() if not asked.only or name in asked.only]
    rows: dict[str, dict[str, Any]] = {}
    undisturbed: dict[int, Undisturbed] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for row in chosen:
            rows[row.name] = tried(row, Path(folder), tries=asked.tries, seed=asked.seed, undisturbed=undisturbed)
            keep(rows, seed=asked.seed)
    print(table(rows))
    sys.exit(any(row["survived"] < row["tries"] for row in rows.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], choices=sorted(FAULTS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def tried(row: Fault, folder: Path, *, tries: int, seed: int, undisturbed: dict[int, Undisturbed]) -> dict[str, Any]:
    """One line of the table."""
    chance = random.Random(f"{row.name} {seed}")
    moments = [moment for _ in range(tries) for moment in chance.sample(row.moments, len(row.moments))][:tries]
    done: dict[str, Any] = {"text": row.text, "tries": 0, "survived": 0, "seconds": None, "moments": [], "problems": []}
    if row.needs_root and os.geteuid() != 0:
        return done | {"problems": ["not tried: it mounts a file system, and that takes root"]}
    for count, moment in enumerate(moments):
        place = folder / f"{row.name}-{count}"
        place.mkdir()
        trial = once(row, place, moment, seed + count, undisturbed=undisturbed)
        done["tries"] += 1
        done["survived"] += not trial.problems
        done["moments"].append(moment)
        done["seconds"] = round(max(done["seconds"] or 0.0, trial.seconds or 0.0), 1)
        done["problems"] += [f"{moment}, seed {seed + count}: {problem}" for problem in trial.problems]
    return done


def once(row: Fault, folder: Path, moment: str, seed: int, *, undisturbed: dict[int, Undisturbed]) -> Trial:
    """One try, told on a line."""
    began_s = time.monotonic()
    trial = Trial(folder, moment, seed, undisturbed=undisturbed)
    try:
        row.do(trial)
    except Exception as failure:  # noqa: BLE001 - a try that cannot be made has not survived
        trial.problem(f"the try itself: {type(failure).__name__}: {failure}")
    finally:
        trial.close()
    wall_s = time.monotonic() - began_s
    print(f"{row.name:28} {moment:11} seed {seed:<7} {wall_s:5.1f} s  {'no' if trial.problems else 'ok'}", flush=True)
    for problem in trial.problems:
        print(f"    {problem}", flush=True)
    return trial


def keep(rows: dict[str, dict[str, Any]], *, seed: int) -> None:
    """Puts rows into the results; those of faults that were not tried now stay."""
    old = json.loads(RESULTS.read_text("utf-8"))["faults"] if RESULTS.exists() else {}
    for row in rows.values():
        row.update(date=date.today().isoformat(), seed=seed)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "torch": version("torch")}
    ordered = {name: (old | rows)[name] for name in FAULTS if name in old or name in rows}
    RESULTS.write_text(json.dumps({"machine": machine, "faults": ordered}, indent=1) + "\n", "utf-8")


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["| fault | tries | survived | longest, s | moments |", "| --- | --: | --: | --: | --- |"]
    for row in rows.values():
        moments = ", ".join(dict.fromkeys(row["moments"]))
        lines.append(f"| {row['text']} | {row['tries']} | {row['survived']} | {row['seconds']} | {moments} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
