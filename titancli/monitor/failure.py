"""Which rank failed first, and what it said.

Knows four witnesses, the better one first: the run's events, the errors recorded for torchrun,
the last line of a traceback in a rank's log, and torchrun's own report (for a rank that was killed
and could say nothing). Does not decide whether a run failed.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from titancli.monitor.run_state import WAITED, Failure, RunState, follows, weight
from titancli.rank_logs import RankLogs, rank_logs, text_of, torchrun_logs

_REPORTED = re.compile(
    r"(?:time\s*:\s*(\S+)\s*\n\s*host\s*:[^\n]*\n\s*)?"
    r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)"
)
# torch puts the rank in front of an error that nobody caught.
_LAST_LINE = re.compile(
    r"^(?:\[rank\d+\]: )?(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure))(?:: (?P<message>.*))?$"
)
_TAIL_BYTES = 64 * 1024
_CRASHED = "the process crashed"
_OF_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "the process was killed from outside, as the system does when memory runs out",
    signal.SIGBUS: f"{_CRASHED}: memory that it had mapped is not there, as where /dev/shm is full",
    signal.SIGSEGV: f"{_CRASHED}: it used memory that is not its own",
    signal.SIGABRT: f"{_CRASHED}: a library ended it",
    signal.SIGILL: f"{_CRASHED}: this processor does not know an instruction of a library",
    signal.SIGFPE: f"{_CRASHED} in arithmetic",
}


def failures_of(run: Path, state: RunState) -> list[Failure]:
    """All failures of a run, the cause first; empty where no witness saw any."""
    found = {failure.rank: failure for failure in reversed(state.failures)}
    order = {failure.rank: place for place, failure in enumerate(state.failures)}
    ends: dict[int, float] = {rank: state.ranks[rank].last_time or 0.0 for rank in found if rank in state.ranks}
    for rank, logs in rank_logs(run).items():
        told = _recorded(logs) or _traceback(logs)
        # A rank whose events blame another rank ended with that error too, but it is not its own.
        blames = rank in state.ranks and state.ranks[rank].failure is not None
        if rank not in found and told is not None and not blames:
            found[rank] = told
            ends[rank] = _changed(logs)
    for rank, exit_code, is_later in _killed(run):
        if rank not in found or follows(found[rank]) or found[rank].type == "LostRank":
            found[rank] = _by_signal(rank, exit_code, is_later=is_later)
            ends[rank] = 0.0
    return sorted(
        found.values(),
        key=lambda failure: (
            *weight(failure),
            ends.get(failure.rank, 0.0),
            order.get(failure.rank, len(order)),
            failure.rank,
        ),
    )


def _recorded(logs: RankLogs) -> Failure | None:
    """What the rank wrote for torchrun: `Type: message`."""
    try:
        told = json.loads(text_of(logs.error, _TAIL_BYTES))["message"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    kind, _, message = str(told).partition(": ")
    return Failure(rank=logs.rank, host=None, type=kind, message=message)


def _traceback(logs: RankLogs) -> Failure | None:
    """The last line of the first traceback in the rank's log; later ones only follow from it."""
    text = text_of(logs.stderr, _TAIL_BYTES)
    if "Traceback (most recent call last)" not in text:
        return None
    for line in text.splitlines():
        match = _LAST_LINE.match(line)
        if match is not None:
            return Failure(rank=logs.rank, host=None, type=match["type"], message=match["message"] or "")
    return None


def _changed(logs: RankLogs) -> float:
    times = [path.stat().st_mtime for path in (logs.error, logs.stderr) if path.is_file()]
    return min(times, default=0.0)


def _killed(run: Path) -> list[tuple[int, int, bool]]:
    """Ranks that torchrun saw end by a signal other than the SIGTERM that it sends itself, with their exit codes.

    And whether one ended later than the first: ranks that wait for it are killed where they cannot end by themselves.
    """
    report = "\n".join(text_of(log, _TAIL_BYTES) for log in torchrun_logs(run))
    seen = [(time, int(rank), int(code)) for time, rank, code in dict.fromkeys(_REPORTED.findall(report))]
    first = min((time for time, _, _ in seen), default="")
    return [(rank, code, time > first) for time, rank, code in seen if code < 0 and code != -signal.SIGTERM]


def _by_signal(rank: int, exit_code: int, *, is_later: bool) -> Failure:
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    message = _OF_SIGNAL.get(-exit_code, "the process was ended by it")
    if is_later and exit_code == -signal.SIGKILL:
        message = WAITED
    return Failure(rank=rank, host=None, type=name, message=message)
