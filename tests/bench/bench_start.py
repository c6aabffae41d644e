"""How long titan takes to answer: whole processes, and the parts that every command goes through.

`python tests/bench/bench_start.py` prints medians of ten beside the limits that people were
promised, and exits 1 where one is passed. Not a test: a shared machine is noisy.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from engine.events import EventLog
from engine.rules import check
from engine.sources import load, preset_names
from titancli.monitor.follow import Follower

ROUNDS = 10
RANKS = 512
COMMANDS: tuple[tuple[str, float], ...] = (
    ("--help", 0.3),
    ("presets", 0.3),
    *((f"validate --preset {name}", 0.8) for name in preset_names()),
    ("launch --preset 3d-405b", 2.0),
)


def median_s(work: Callable[[], object]) -> float:
    """Median wall time of ten calls."""
    times_s: list[float] = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)


def read_many_ranks(folder: Path) -> float:
    """Seconds to read the events of 512 ranks for the first time."""
    for rank in range(RANKS):
        log = EventLog(folder, rank)
        for _ in range(20):
            log.write("memory", active_bytes=1, reserved_bytes=rank)
        log.close()
    began_s = time.perf_counter()
    assert len(Follower(folder).read().ranks) == RANKS
    return time.perf_counter() - began_s


def main() -> None:
    """Prints a line for each, and judges."""
    rows: list[tuple[str, float, float]] = []
    for words, limit_s in COMMANDS:
        answer = partial(subprocess.run, [sys.executable, "-m", "titancli", *words.split()], capture_output=True)
        rows.append((f"titan {words}", median_s(answer), limit_s))
    loaded = load(preset="3d-405b", environ={})
    rows.append(("load 3d-405b", median_s(lambda: load(preset="3d-405b", environ={})), 0.010))
    rows.append(("check 3d-405b", median_s(lambda: check(loaded)), 0.030))
    with tempfile.TemporaryDirectory() as folder:
        rows.append((f"read {RANKS} ranks", read_many_ranks(Path(folder)), 3.0))
    for name, seconds, limit_s in rows:
        print(f"{name:36} {seconds:7.4f} s of {limit_s} s{'' if seconds < limit_s else '  TOO SLOW'}")
    sys.exit(any(seconds >= limit_s for _, seconds, limit_s in rows))


if __name__ == "__main__":
    main()
