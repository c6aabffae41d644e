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

from engine.parent import SHOWN_BY_ITSELF, SHOWS_STACKS
from titancli.monitor.run_state import SILENT, WAITED, Failure, RunState, follows, weight
from titancli.rank_logs import RankLogs, rank_logs, text_of, torchrun_logs

_REPORTED = re.compile(
    r"(?:time\s*:\s*(\S+)\s*\n\s*host\s*:[^\n]*\n\s*)?"
    r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)"
)
# torch puts the rank in front of an error that nobody caught.
_LAST_LINE = re.compile(
    r"^(?:\[rank\d+\]: )?(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure))(?:: (?P<message>.*))?$"
)
# What faulthandler writes before it ends a process, and each of the frames that follow.
_TIMEOUT = re.compile(r"^Timeout \((\d+):(\d\d):(\d\d)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_MOST_FRAMES = 5
_SENT_BY_US = (signal.SIGTERM, SHOWS_STACKS)
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
        # A rank that only waited shows its stacks too, before it tells of the one that is lost. Where the network is
        # cut, each side takes the other for lost.
        could_run = SHOWN_BY_ITSELF in text_of(logs.stderr, _TAIL_BYTES)
        is_lost = rank in found and found[rank].type == "LostRank" and not could_run
        held = _held(logs) if is_lost or (rank not in found and not _has_ended(state, rank)) else None
        if held is not None and (is_lost or "Timeout (" in text_of(logs.stderr, _TAIL_BYTES)):
            found[rank] = held
            ends[rank] = 0.0
    for rank, exit_code, is_later in _reported(run):
        others_told = rank in found and not follows(found[rank]) and (found[rank].type != "LostRank" or is_later)
        if exit_code < 0 and not others_told:
            found[rank] = _by_signal(rank, exit_code, is_later=is_later)
            ends[rank] = 0.0
        elif exit_code > 0 and rank not in found and not _has_ended(state, rank):
            found[rank] = _without_a_word(rank, logs=rank_logs(run).get(rank), exit_code=exit_code)
    if found and all(follows(failure) for failure in found.values()):
        # torchrun has nothing to report of a rank that ended as if all were well.
        gone = [rank for rank in state.ranks if rank not in found and not _has_ended(state, rank)]
        found |= {rank: _without_a_word(rank, logs=rank_logs(run).get(rank), exit_code=0) for rank in gone}
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


def _has_ended(state: RunState, rank: int) -> bool:
    return rank in state.ranks and state.ranks[rank].has_ended


def _held(logs: RankLogs) -> Failure | None:
    """A rank whose threads could not run, so that C wrote their stacks to its log: the main one's is the last."""
    text = text_of(logs.stderr, _TAIL_BYTES)
    frames = [f"{file}:{line} in {name}" for file, line, name in _FRAME.findall(text[text.rfind("hread 0x") :])]
    if "hread 0x" not in text or not frames:
        return None
    lasted = [int(hours) * 3600 + int(minutes) * 60 + int(rest) for hours, minutes, rest in _TIMEOUT.findall(text)]
    how_long = f" for {lasted[-1]} s" if lasted else ""
    why = f"it was stopped, or keeps Python's interpreter to itself at {frames[0]}"
    told = [f"none of its threads could run{how_long}: {why}", *(f"from {frame}" for frame in frames[1:_MOST_FRAMES])]
    return Failure(rank=logs.rank, host=None, type="StuckRank", message="\n".join(told))


def _without_a_word(rank: int, *, logs: RankLogs | None, exit_code: int) -> Failure:
    """A rank that ended in the middle of a run, as where something calls `os._exit`."""
    lines = text_of(logs.stderr, _TAIL_BYTES).split("\n") if logs is not None else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    message = f"the process ended with exit code {exit_code} and told nothing" + (
        f"; its last line: {last}" if last else ""
    )
    return Failure(rank=rank, host=None, type=SILENT, message=message)


def _reported(run: Path) -> list[tuple[int, int, bool]]:
    """Ranks that torchrun saw fail, but for what it and the launcher send themselves, with their exit codes.

    And whether one ended later than the first: ranks that wait for it are killed where they cannot end by themselves.
    """
    report = "\n".join(text_of(log, _TAIL_BYTES) for log in torchrun_logs(run))
    seen = [(time, int(rank), int(code)) for time, rank, code in dict.fromkeys(_REPORTED.findall(report))]
    first = min((time for time, _, _ in seen), default="")
    return [(rank, code, time > first) for time, rank, code in seen if -code not in _SENT_BY_US]


def _by_signal(rank: int, exit_code: int, *, is_later: bool) -> Failure:
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    message = _OF_SIGNAL.get(-exit_code, "the process was ended by it")
    if is_later and exit_code == -signal.SIGKILL:
        message = WAITED
    return Failure(rank=rank, host=None, type=name, message=message)
