"""`titan logs`: what the ranks of a run printed, that of the first failure first.

Knows the order and the headings. Does not know where logs stand (rank_logs) or which rank failed
(failure).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TypeAlias

from engine.errors import TitanError
from titancli import figures, report
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower, Launcher, find_run, is_over, judge
from titancli.monitor.signs import is_held
from titancli.rank_logs import attempts, bytes_of, launch_logs, rank_logs, torchrun_logs

_REFRESH_S = 0.3
# Device and number of a file.
_File: TypeAlias = tuple[int, int]


def logs(name: str | None, *, dump_folder: str, rank: int | None, follow: bool, attempt: int | None = None) -> int:
    """Prints logs, and with `follow` goes on until the run ends; TitanError where there is no such run or rank.

    `attempt` is an earlier one of a run that was started again, counted from 1.
    """
    run = find_run(name, dump_folder)
    if attempt is not None:
        return _of_attempt(run, attempt, rank)
    follower = Follower(run)
    failures = failures_of(run, follower.read())
    first = failures[0].rank if failures else None
    if rank is not None:
        _require(run, rank, follow=follow)
    printed: dict[_File, int] = {}
    if first is not None and rank in (None, first):
        kind = f"{failures[0].type}: {(failures[0].message.splitlines() or [''])[0]}".removesuffix(": ")
        report.say(f"rank {first} failed first: {kind}", tint="bad")
    while True:
        launcher = Launcher.read(run)
        is_last = not follow or _is_over(run, launcher, follower)
        for path, heading in _files(run, rank, first):
            _print_new(path, heading, printed, is_last=is_last)
        if is_last:
            break
        time.sleep(_REFRESH_S)
    if not printed:
        report.say(f"{run}: no rank has printed anything", sys.stderr)
    elif not follow and (count := attempts(run)) > 1:
        report.say(f"this is attempt {count}; those before: titan logs {run} --attempt N", sys.stderr, tint="faint")
    return 0


def _is_over(run: Path, launcher: Launcher | None, follower: Follower) -> bool:
    """Whether no rank is going to print anything more."""
    holds = is_held(run, launcher)
    return is_over(judge(follower.read(), launcher, holds=holds), launcher, holds=holds)


def _of_attempt(run: Path, attempt: int, rank: int | None) -> int:
    """Prints what the ranks of one attempt have left."""
    if not 1 <= attempt <= attempts(run):
        fix = f"give one of 1 to {attempts(run)}" if attempts(run) > 1 else "leave --attempt out"
        raise TitanError(report.error("U111", f"there is no log of an attempt {attempt} in {run}", fix))
    if rank is not None:
        _require(run, rank, follow=False, attempt=attempt)
    printed: dict[_File, int] = {}
    for path, heading in _files(run, rank, None, attempt):
        _print_new(path, heading, printed, is_last=True)
    if not printed:
        report.say(f"{run}: no rank has printed anything in attempt {attempt}", sys.stderr)
    return 0


def _require(run: Path, rank: int, *, follow: bool, attempt: int | None = None) -> None:
    known = tuple(rank_logs(run, attempt))
    if rank not in known and not (follow and not known):
        fix = f"give one of {figures.ranges(known)}" if known else "no rank has started yet"
        raise TitanError(report.error("U111", f"there is no log of rank {rank} in {run}", fix))


def _files(run: Path, rank: int | None, first: int | None, attempt: int | None = None) -> list[tuple[Path, str]]:
    """The logs that are asked for with their headings, those of the first failure in front.

    Last comes what nobody of them said: torchrun's own, and the words of launchers without a terminal.
    """
    found = [logs for number, logs in rank_logs(run, attempt).items() if rank in (None, number)]
    found.sort(key=lambda logs: (logs.rank != first, logs.rank))
    files = [(path, f"rank {logs.rank} {path.stem}") for logs in found for path in (logs.stderr, logs.stdout)]
    if rank is not None:
        return files
    launchers = [] if attempt is not None else launch_logs(run)
    return [
        *files,
        *((log, "torchrun") for log in torchrun_logs(run, attempt)),
        *((log, "launcher") for log in launchers),
    ]


def _print_new(path: Path, heading: str, printed: dict[_File, int], *, is_last: bool) -> None:
    """Prints what a log has more than last time, under its heading; a line that is being written has to wait.

    A log that has taken the place of one of an attempt before is another file.
    """
    try:
        file = path.stat().st_dev, path.stat().st_ino
    except OSError:
        return
    data = bytes_of(path, printed.get(file, 0))
    whole = data if is_last else data[: data.rfind(b"\n") + 1]
    if whole:
        report.say(f"==> {heading}: {path} <==", tint="faint")
        sys.stdout.write(whole.decode("utf-8", errors="replace") + ("" if whole.endswith(b"\n") else "\n"))
        sys.stdout.flush()
        printed[file] = printed.get(file, 0) + len(whole)
