"""`titan logs`: what the ranks of a run printed, that of the first failure first.

Knows the order and the headings. Does not know where logs stand (rank_logs) or which rank failed
(failure).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from engine.errors import TitanError
from titancli import figures, report
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import ENDED, Follower, Launcher, find_run, judge
from titancli.rank_logs import bytes_of, rank_logs, torchrun_logs

_REFRESH_S = 0.3


def logs(name: str | None, *, dump_folder: str, rank: int | None, follow: bool) -> int:
    """Prints logs, and with `follow` goes on until the run ends; TitanError where there is no such run or rank."""
    run = find_run(name, dump_folder)
    follower = Follower(run)
    failures = failures_of(run, follower.read())
    first = failures[0].rank if failures else None
    if rank is not None:
        _require(run, rank, follow=follow)
    printed: dict[Path, int] = {}
    if first is not None and rank in (None, first):
        kind = f"{failures[0].type}: {(failures[0].message.splitlines() or [''])[0]}".removesuffix(": ")
        report.say(f"rank {first} failed first: {kind}", tint="bad")
    while True:
        launcher = Launcher.read(run)
        is_last = not follow or judge(follower.read(), launcher) in ENDED
        for path, heading in _files(run, rank, first):
            _print_new(path, heading, printed, is_last=is_last)
        if is_last:
            break
        time.sleep(_REFRESH_S)
    if not printed:
        report.say(f"{run}: no rank has printed anything", sys.stderr)
    return 0


def _require(run: Path, rank: int, *, follow: bool) -> None:
    known = tuple(rank_logs(run))
    if rank not in known and not (follow and not known):
        fix = f"give one of {figures.ranges(known)}" if known else "no rank has started yet"
        raise TitanError(report.error("U111", f"there is no log of rank {rank} in {run}", fix))


def _files(run: Path, rank: int | None, first: int | None) -> list[tuple[Path, str]]:
    """The logs that are asked for with their headings, those of the first failure in front, torchrun's own last."""
    found = [logs for number, logs in rank_logs(run).items() if rank in (None, number)]
    found.sort(key=lambda logs: (logs.rank != first, logs.rank))
    files = [(path, f"rank {logs.rank} {path.stem}") for logs in found for path in (logs.stderr, logs.stdout)]
    return files if rank is not None else [*files, *((log, "torchrun") for log in torchrun_logs(run))]


def _print_new(path: Path, heading: str, printed: dict[Path, int], *, is_last: bool) -> None:
    """Prints what a log has more than last time, under its heading; a line that is being written has to wait."""
    data = bytes_of(path, printed.get(path, 0))
    whole = data if is_last else data[: data.rfind(b"\n") + 1]
    if whole:
        report.say(f"==> {heading}: {path} <==", tint="faint")
        sys.stdout.write(whole.decode("utf-8", errors="replace") + ("" if whole.endswith(b"\n") else "\n"))
        sys.stdout.flush()
        printed[path] = printed.get(path, 0) + len(whole)
