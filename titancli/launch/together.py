"""A launch on several machines: they meet, machine 0 makes the run folder, and each then starts its own processes.

Knows who makes which folder: machines that share a file system share one, any other makes its own with the same
contents. Does not know what is said on the way (roll_call), nor after it (peers).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.checkpoint.beginning import checkpoints_of
from engine.checkpoint.places import is_remote
from engine.config import Config
from engine.errors import EXIT_RUN_FAILED, TitanError
from titancli import report
from titancli.launch import network
from titancli.launch.lease import Lease
from titancli.launch.meeting import Meeting
from titancli.launch.meeting_place import check_place, listener_of
from titancli.launch.peers import Peers
from titancli.launch.progress import quietly_say
from titancli.launch.roll_call import (
    Guest,
    NotMet,
    come,
    gather,
    raise_if_refused,
    refusal,
    refusal_by_head,
    turn_away,
)
from titancli.launch.run_folder import withdraw
from titancli.launch.start import Ready
from titancli.launch.wire import Line, Message
from titancli.monitor.follow import folder_of_runs

# Its file system may show a new file to other machines a moment later.
_APPEARS_S = 3.0
# What a machine does between two words: choose and write a folder, at most move a large one aside.
_FOLDER_S = 60.0
# Launches that were called at the same time come within this.
_TURN_AWAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What has come of a meeting: a run folder, whose lease is None where another machine's launcher has it."""

    ready: Ready
    lease: Lease | None
    peers: Peers


Make = Callable[[Meeting], tuple[Ready, Lease] | Path]
"""Makes the run folder on this machine's disk; or the folder of the same run, where that is complete."""
Join = Callable[[Meeting, Path], Ready]


def meet(meeting: Meeting, card: Message, config: Config, *, make: Make, join: Join) -> Met | Path:
    """Comes together with the others, up to the moment in which all may start their processes.

    TitanError or NotMet where they do not fit together, or one of them does not come or cannot go on.
    """
    timeout_s = float(config.comm.init_timeout_seconds)
    silence_s = float(config.comm.train_timeout_seconds)
    if meeting.is_head:
        return _receive(meeting, card, timeout_s=timeout_s, silence_s=silence_s, make=make)
    line = come(meeting, card, timeout_s=timeout_s, say=_say)
    return _follow(meeting, line, config, timeout_s=timeout_s, silence_s=silence_s, make=make, join=join)


def _say(text: str) -> None:
    quietly_say(text, tint="faint")


def _receive(meeting: Meeting, card: Message, *, timeout_s: float, silence_s: float, make: Make) -> Met | Path:
    """Machine 0's side."""
    listener = listener_of(meeting)
    try:
        guests = gather(meeting, card, listener, timeout_s=timeout_s, say=_say)
    finally:
        # torchrun listens there from now on.
        listener.close()
    addresses = [guest.line.here for guest in guests]
    met = replace(meeting, interface=network.interface_of(addresses[0])) if addresses else meeting
    try:
        made = make(met)
    except TitanError as mistake:
        _end_all(guests, mistake)
        raise
    if isinstance(made, Path):
        for guest in guests:
            guest.line.send({"complete": True})
        return made
    ready, lease = made
    ready = replace(ready, rows=(*card["rows"], *(row for guest in guests for row in guest.rows)))
    marker = f".met-{uuid.uuid4().hex}"
    (ready.run / marker).touch()
    try:
        for guest in guests:
            guest.line.send({"go": marker, "host": card["host"], "rows": ready.rows})
        for guest in guests:
            _require_ready(guest, guests)
    except NotMet:
        _give_back(ready, lease)
        raise
    finally:
        with contextlib.suppress(OSError):
            (ready.run / marker).unlink()
    for guest in guests:
        guest.line.send({"start": True})
    return Met(ready=ready, lease=lease, peers=Peers(0, guests, silence_s=silence_s))


def _give_back(ready: Ready, lease: Lease) -> None:
    """Nothing was started in the run folder that was made, so nothing is to be in the way of the next launch."""
    lease.close()
    withdraw(ready.run, ready.aside)


def _require_ready(guest: Guest, guests: list[Guest]) -> None:
    """Waits until a machine has its folder; NotMet, which all are told, where it cannot."""
    answer = guest.line.wait(_FOLDER_S)
    if answer is not None and "ready" in answer:
        return
    if answer is not None and "failed" in answer:
        why = str(answer["failed"])
    else:
        why = "it went away" + (f" ({guest.line.why_gone})" if guest.line.why_gone else "")
    finding = report.error(
        "R156", f"{guest} cannot go on: {why}", f"mend that on {guest.host}, and launch again on all"
    )
    code = answer.get("exit_code") if answer is not None else None
    failed = NotMet(finding, code if isinstance(code, int) else EXIT_RUN_FAILED)
    for other in guests:
        if other is not guest:
            other.line.send(refusal(finding, failed.exit_code))
    raise failed


def _end_all(guests: list[Guest], mistake: TitanError) -> None:
    for guest in guests:
        guest.line.send(refusal_by_head(mistake))
        guest.line.close()


def tell_why_not(meeting: Meeting, config: Config, mistake: TitanError) -> None:
    """Machine 0 has failed before it could wait for the others: those who wait for it hear why."""
    with contextlib.suppress(TitanError):
        check_place(meeting)
        with listener_of(meeting) as listener:
            turn_away(meeting, config.job.name, listener, mistake, within_s=_TURN_AWAY_S)


def _follow(
    meeting: Meeting, line: Line, config: Config, *, timeout_s: float, silence_s: float, make: Make, join: Join
) -> Met | Path:
    """Every other machine's side, once machine 0 has let it in."""
    # The one that waits longest is machine 0, and it tells the others when that is over.
    told = _next(meeting, line, timeout_s + _FOLDER_S)
    run = folder_of_runs(config.job.dump_folder) / config.job.name
    if "complete" in told:
        return run
    met = replace(meeting, interface=network.interface_of(line.here))
    lease: Lease | None = None
    try:
        if _is_shared(run / str(told.get("go"))):
            ready = join(met, run)
        else:
            _require_shared_checkpoints(config, run)
            made = make(met)
            if isinstance(made, Path):
                message = f"{made} is complete on this machine's own disk, and the run of node 0 is not"
                raise TitanError(report.error("R156", message, "give another --name, or move that folder aside"))
            ready, lease = made
    except TitanError as mistake:
        line.send({"failed": mistake.findings[0].message, "exit_code": mistake.exit_code})
        raise
    line.send({"ready": True})
    try:
        _next(meeting, line, timeout_s)
    except NotMet:
        if lease is not None:
            _give_back(ready, lease)
        raise
    ready = replace(ready, rows=tuple(told.get("rows", ())))
    head = Guest(rank=0, host=str(told.get("host", meeting.host)), line=line)
    return Met(ready=ready, lease=lease, peers=Peers(meeting.rank, [head], silence_s=silence_s))


def _next(meeting: Meeting, line: Line, timeout_s: float) -> Message:
    """The next word of machine 0; NotMet where it ends the meeting, or is gone."""
    told = line.wait(timeout_s)
    if told is not None:
        raise_if_refused(told)
        return told
    why = f" ({line.why_gone})" if line.why_gone else "" if line.is_gone else f" (no word for {timeout_s:.0f} s)"
    message = f"node 0 went away from {meeting.endpoint} before the run was started{why}"
    raise NotMet(report.error("R159", message, "look at what its titan launch says, and launch again on all nodes"))


def _is_shared(marker: Path) -> bool:
    """Whether the file that machine 0 has just made in its run folder is seen here."""
    deadline_s = time.monotonic() + (_APPEARS_S if marker.parent.parent.is_dir() else 0.0)
    while not os.path.lexists(marker):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _require_shared_checkpoints(config: Config, run: Path) -> None:
    """TitanError where each machine would keep a part of every checkpoint, and none could be loaded."""
    if not config.checkpoint.enable or is_remote(folder := checkpoints_of(config, Path())) or folder.is_absolute():
        return
    message = f"{run} is not the folder that node 0 has made: checkpoints would be torn over the disks of all nodes"
    fix = "set job.dump_folder, or checkpoint.folder alone, to a place that all nodes share"
    raise TitanError(report.error("R156", message, fix, key="job.dump_folder"))
