"""The launchers of several machines find each other before anything is started: who is there, and with what.

Knows what is asked of each and when they do not fit together; then every one of them says the same and ends. Does not
know run folders (together) nor what is said once processes run (peers).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engine.errors import EXIT_CONFIG, EXIT_RUN_FAILED, Finding, TitanError
from engine.keys import field_types, value_of
from engine.planner.plan import Plan
from engine.settled import settled_by
from engine.sources import Loaded
from titancli import report
from titancli.launch import network
from titancli.launch.differences import difference, is_whole
from titancli.launch.meeting import Meeting
from titancli.launch.ranks import Row
from titancli.launch.wire import Line, Message, readable

_PROTOCOL = 1
_GREETING_S = 3.0
_RETRY_S = 0.5
# Who has come says who it is as soon as it is greeted; others have found the port by chance, and some stay for ever.
_MOST_STRANGERS = 64
# A machine that is waited for, or waits, is looked after like this until the run has its own limits.
_SILENCE_S = 30.0
# Each machine may keep its runs in a place of its own, and call them what it likes.
_OWN_KEYS = frozenset({"job.dump_folder", "job.description"})
_PACKAGES = ("torch", "titan-train")
Say = Callable[[str], None]


class NotMet(Exception):
    """Machines that should have come together and have not; carries what to say and the exit code."""

    def __init__(self, finding: Finding, exit_code: int = EXIT_RUN_FAILED) -> None:
        self.finding, self.exit_code = finding, exit_code
        super().__init__(str(finding))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A machine that has come: its number, its name, the connection with its launcher, and where its ranks are."""

    rank: int
    host: str
    line: Line
    rows: tuple[Message, ...] = ()

    def __str__(self) -> str:
        return f"node {self.rank} ({self.host})"


def card_of(
    meeting: Meeting, loaded: Loaded, plan: Plan, *, resume: bool, overwrite: bool, rows: Sequence[Row] = ()
) -> Message:
    """What a launcher says of itself: all that has to be the same everywhere, where it is, and which ranks it has."""
    config: dict[str, Any] = {key: value_of(loaded.config, key) for key in field_types() if key not in _OWN_KEYS}
    config |= settled_by(loaded.config, plan) | {"the number of processes": plan.world_size}
    return {
        "titan": _PROTOCOL,
        "run": loaded.config.job.name,
        "nodes": meeting.nodes,
        "rank": meeting.rank,
        "host": socket.gethostname(),
        "config": {key: _plain(value) for key, value in config.items()},
        "versions": {package: _version(package) for package in _PACKAGES},
        "flags": {"--resume": resume, "--overwrite": overwrite},
        "rows": [asdict(row) for row in rows],
    }


def _plain(value: object) -> object:
    return list(map(_plain, value)) if isinstance(value, tuple | list) else value if _is_plain(value) else str(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | dict)


def _version(package: str) -> str:
    try:
        # A build for another CUDA has another suffix, and the same wire format.
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return ""


def gather(meeting: Meeting, mine: Message, listener: socket.socket, *, timeout_s: float, say: Say) -> list[Guest]:
    """Machine 0 waits for all others; NotMet where one does not come in time, TitanError where one does not fit."""
    guests: dict[int, Guest] = {}
    strangers: list[Line] = []
    deadline_s = time.monotonic() + timeout_s
    wanted = set(range(1, meeting.nodes))
    say(f"waiting for {_nodes(wanted)} at {meeting.endpoint}")
    try:
        while wanted - guests.keys():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _missing(meeting, guests, timeout_s)
            known: list[Line | socket.socket] = [listener, *strangers, *(guest.line for guest in guests.values())]
            if listener in readable(known, min(left_s, 1.0)):
                strangers.append(_greet(mine, listener))
                for line in strangers[:-_MOST_STRANGERS]:
                    strangers.remove(line)
                    line.close()
            _let_go(guests, say)
            for line in [line for line in strangers if line.heard() or line.is_gone]:
                strangers.remove(line)
                new = _admit(mine, line, guests)
                if new is not None:
                    line.keep_alive(_SILENCE_S)
                    guests[new.rank] = new
                    say(f"{new} is here from {line.there}")
    finally:
        for line in strangers:
            line.close()
    return [guests[rank] for rank in sorted(guests)]


def _greet(mine: Message, listener: socket.socket) -> Line:
    """Who has knocked hears where it is, before it has to say anything."""
    line = Line(listener.accept()[0])
    line.send({key: mine[key] for key in ("titan", "run", "nodes")})
    return line


def _let_go(guests: dict[int, Guest], say: Say) -> None:
    """Machines that have gone away may come again."""
    for guest in [each for each in guests.values() if not each.line.heard() and each.line.is_gone]:
        say(f"{guest} has gone again; waiting for it")
        guests.pop(guest.rank).line.close()


def _missing(meeting: Meeting, guests: dict[int, Guest], timeout_s: float) -> NotMet:
    absent = [rank for rank in range(1, meeting.nodes) if rank not in guests]
    message = f"{_nodes(absent)} of {meeting.nodes} did not come to {meeting.endpoint} within {timeout_s:.0f} s"
    fix = (
        f"call titan launch there too, with --node-rank {' or '.join(map(str, absent))} and the same --rdzv-endpoint; "
        "longer waiting: comm.init_timeout_seconds"
    )
    finding = report.error("R148", message, fix)
    _refuse([*guests.values()], finding, EXIT_RUN_FAILED)
    return NotMet(finding)


def _nodes(ranks: set[int] | list[int]) -> str:
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _admit(mine: Message, line: Line, guests: dict[int, Guest]) -> Guest | None:
    """The machine that says who it is; None for one that only has the wrong door."""
    theirs = line.wait(0.0) or {}
    match theirs:
        case {"titan": int(), "run": str(run), "rank": int(rank), "host": str(host)} if run == mine["run"] and is_whole(
            mine, theirs
        ):
            rows = theirs.get("rows")
            guest = Guest(rank=rank, host=host, line=line, rows=tuple(rows) if isinstance(rows, list) else ())
        case _:
            line.close()
            return None
    wrong = _wrong(mine, theirs, guest, guests)
    if wrong is None:
        return guest
    _refuse([*guests.values(), guest], wrong, EXIT_CONFIG)
    raise TitanError(wrong)


def _wrong(mine: Message, theirs: Message, guest: Guest, guests: dict[int, Guest]) -> Finding | None:
    """The first thing in which a machine does not fit in with machine 0 and those that have come."""
    wrong = difference(mine, theirs, str(guest))
    if wrong is None and guest.rank in guests and not guests[guest.rank].line.is_gone:
        message = f"two of them call themselves node {guest.rank}: {guests[guest.rank].host} and {guest.host}"
        return report.error("R149", message, "give each its own --node-rank")
    return wrong


def _refuse(guests: Sequence[Guest], finding: Finding, exit_code: int) -> None:
    """Tells all who have come why nothing is going to start."""
    for guest in guests:
        guest.line.send(refusal(finding, exit_code))
        guest.line.close()


def refusal(finding: Finding, exit_code: int) -> Message:
    """The message with which a launcher ends the meeting for another."""
    return {"refused": [finding.rule, finding.message, finding.fix], "exit_code": exit_code}


def refusal_by_head(mistake: TitanError) -> Message:
    """The message with which machine 0 tells another what is wrong with its own part."""
    first = mistake.findings[0]
    return refusal(replace(first, message=f"{first.message}, says node 0"), mistake.exit_code)


def turn_away(meeting: Meeting, run: str, listener: socket.socket, mistake: TitanError, *, within_s: float) -> None:
    """Machine 0 cannot begin: who comes within that time hears why, and need not wait for it."""
    greeting = {"titan": _PROTOCOL, "run": run, "nodes": meeting.nodes}
    strangers: list[Line] = []
    told: set[int] = set()
    deadline_s = time.monotonic() + within_s
    while len(told) < meeting.nodes - 1 and (left_s := deadline_s - time.monotonic()) > 0:
        known: list[Line | socket.socket] = [listener, *strangers]
        if listener in readable(known, left_s):
            strangers.append(_greet(greeting, listener))
        if len(strangers) > _MOST_STRANGERS:
            strangers.pop(0).close()
        for line in [line for line in strangers if line.heard() or line.is_gone]:
            match line.wait(0.0):
                case {"run": str(theirs), "rank": int(rank)} if theirs == run:
                    line.send(refusal_by_head(mistake))
                    told.add(rank)
            strangers.remove(line)
            line.close()
    for line in strangers:
        line.close()


def raise_if_refused(message: Message) -> None:
    """Raises what another launcher has said, where that ends the meeting."""
    match message:
        case {"refused": [str(rule), str(text), str(fix)], "exit_code": int(code)}:
            finding = Finding(rule=rule, severity="error", key="", message=text, fix=fix)
            raise NotMet(finding, code)


def come(meeting: Meeting, mine: Message, *, timeout_s: float, say: Say) -> Line:
    """A machine comes to machine 0, which lets it in; NotMet with the reason where it is not to be met in time."""
    deadline_s = time.monotonic() + timeout_s
    told, place = "", f"{meeting.endpoint}{_whose(meeting)}"
    while True:
        line, reason = _knock(meeting, mine)
        if line is not None:
            line.keep_alive(_SILENCE_S)
            say(f"node 0 is there at {meeting.endpoint}; waiting for the others")
            return line
        if time.monotonic() > deadline_s:
            message = f"node 0 was not to be met at {place} within {timeout_s:.0f} s: {reason}"
            fix = "look whether titan launch --node-rank 0 waits there, and whether a firewall is in the way"
            raise NotMet(report.error("R147", message, fix))
        if reason != told:
            say(f"waiting for node 0 at {place}; {reason}")
            told = reason
        time.sleep(_RETRY_S)


def _whose(meeting: Meeting) -> str:
    """What a machine has to know of the address where node 0 should be: 127.0.0.1 is another one on each."""
    try:
        addresses = network.addresses_of(meeting.host, timeout_s=_GREETING_S)
    except network.NotResolved:
        return ""
    return " (this machine itself)" if all(map(network.is_here, addresses)) else ""


def _knock(meeting: Meeting, mine: Message) -> tuple[Line | None, str]:
    """The connection with machine 0's launcher, or why there is none now."""
    try:
        line = Line(socket.create_connection((meeting.host, meeting.port), timeout=_GREETING_S))
    except TimeoutError:
        return None, "no answer from that address: the machine is off, or a firewall drops what is sent"
    except ConnectionRefusedError:
        return None, "connection refused: the machine is up, and nothing listens at that port yet"
    except OSError as trouble:
        return None, (trouble.strerror or str(trouble)).lower()
    greeting = line.wait(_GREETING_S)
    if greeting is None or "titan" not in greeting:
        line.close()
        return None, "what listens there is not a titan launch that waits for others"
    if greeting.get("run") != mine["run"]:
        line.close()
        return None, f"what waits there is another run, {greeting.get('run')}"
    line.send(mine)
    return line, ""
