"""The launchers of the other machines while a run is going on: how each of them ended, or that it fell silent.

Knows what launchers tell each other from the start of processes to the last word; machine 0 passes on what it hears.
Does not know how they met (roll_call), nor what is done about an end (supervise, start).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.errors import (
    EXIT_CONFIG,
    EXIT_HARDWARE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RUN_FAILED,
    EXIT_TERMINATED,
    Finding,
)
from titancli import report
from titancli.launch.roll_call import Guest
from titancli.launch.supervise import Ending
from titancli.launch.wire import Line, Message, readable
from titancli.monitor.run_state import Failure, follows

_ORDERLY = (EXIT_OK, EXIT_INTERRUPTED, EXIT_TERMINATED)
_LISTEN_S = 0.2
# Ranks that can only follow are given 10 s by their launcher, and 3 s more to be killed in.
_OTHERS_END_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """How a machine's part of a run ended: its launcher's exit code, None where that has gone without a word.

    `failure` is what failed there first, in one line, with `log` where that is written; empty where nothing is known.
    """

    node: int
    host: str
    exit_code: int | None
    failure: str = ""
    log: str = ""

    @property
    def is_orderly(self) -> bool:
        """Whether it ended as runs end that are complete, or asked to stop."""
        return self.exit_code in _ORDERLY

    def __str__(self) -> str:
        return self.finding().message

    def finding(self) -> Finding:
        """The last words of a run that it ended."""
        if self.exit_code is None:
            fix = (
                f"look at {self.host}: whether it runs, what its system's log says, and its network; then launch again"
            )
            return report.error("R157", f"the launcher of node {self.node} ({self.host}) {self.failure}", fix)
        ended = f"node {self.node} ({self.host}) ended with exit code {self.exit_code}"
        message = f"{ended}: {self.failure}" if self.failure else ended
        fix = f"mend what it says; all of it stands on the screen of the launcher on {self.host}"
        return report.error("R158", message, fix, source=f"{self.host}:{self.log}" if self.log else None)


class Peers:
    """The connections with the others: machine 0's with each of them, every other's with machine 0."""

    def __init__(self, node: int, others: Sequence[Guest], *, silence_s: float) -> None:
        """`silence_s`: a machine that has not answered for so long is lost."""
        self.node = node
        self._others = {guest.rank: guest for guest in others}
        self._departed: dict[int, Departure] = {}
        self._verdict: Message | None = None
        self._found: int | None = None
        self._mind(silence_s)

    @property
    def is_head(self) -> bool:
        """Whether the others do as this one says."""
        return self.node == 0

    def news(self) -> list[Departure]:
        """Who has ended since the last call; does not wait."""
        new: list[Departure] = []
        for guest in self._others.values():
            for message in guest.line.read():
                new += self._heard(message)
            if guest.line.is_gone and guest.rank not in self._departed:
                new += self._depart(self._lost(guest))
        return new

    def _heard(self, message: Message) -> list[Departure]:
        match message:
            case {"ended": dict(fields)}:
                return self._depart(Departure(**fields))
            case {"found": int(exit_code)}:
                self._found = exit_code
            case {"again": _} | {"over": _}:
                self._verdict = message
            case _:
                pass  # of a newer titan
        return []

    def _depart(self, departure: Departure) -> list[Departure]:
        if departure.node in self._departed:
            return []
        self._departed[departure.node] = departure
        if self.is_head:
            self._send_all({"ended": asdict(departure)}, but=departure.node)
        return [departure]

    def _lost(self, guest: Guest) -> Departure:
        why = guest.line.why_gone
        text = "is gone without a word, as if it was killed"
        if why:
            text = f"has not answered for {self._silence_s:.0f} s ({why}): its machine or the network to it is down"
        return Departure(node=guest.rank, host=guest.host, exit_code=None, failure=text)

    def _send_all(self, message: Message, *, but: int | None = None) -> None:
        for guest in self._others.values():
            if guest.rank != but and not guest.line.is_gone:
                guest.line.send(message)

    def settle(
        self, ending: Ending, failures: Sequence[Failure], *, log: str, patience_s: float, was_asked: bool
    ) -> Ending:
        """Tells how this machine's part ended, hears how the others' did, and says how the run did in all.

        `was_asked`: this launcher was told to end, which is then how it ended.
        """
        first = next((failure for failure in failures if not follows(failure)), None)
        told = (
            f"rank {first.rank} failed first: {first.type}: {(first.message.splitlines() or [''])[0]}" if first else ""
        )
        if first is None and ending.killed_by is not None:
            told = f"torchrun, the parent of its ranks, was killed by {ending.killed_by} from outside"
        mine = Departure(
            node=self.node,
            host=socket.gethostname(),
            exit_code=ending.exit_code,
            failure=told,
            log=log if first else "",
        )
        self._send_all({"ended": asdict(mine)})
        deadline_s = time.monotonic() + (patience_s if ending.exit_code in _ORDERLY else _OTHERS_END_S)
        while not self._is_settled() and time.monotonic() < deadline_s:
            lines = [guest.line for guest in self._others.values() if not guest.line.is_gone]
            readable(lines, _LISTEN_S)
            self.news()
        if was_asked:
            return ending
        return _in_all(ending, [*self._departed.values()], is_told=first is not None)

    def _is_settled(self) -> bool:
        """Whether nothing more can be heard: machine 0 waits for all, the others for its word."""
        if self.is_head:
            return self._departed.keys() >= self._others.keys()
        return self._verdict is not None or any(guest.line.is_gone for guest in self._others.values())

    @property
    def are_all_there(self) -> bool:
        """Whether every other launcher has told its end and waits for what is next."""
        return all(
            guest.rank in self._departed and self._departed[guest.rank].exit_code is not None and not guest.line.is_gone
            for guest in self._others.values()
        )

    def same(self, exit_code: int, *, within_s: float) -> int:
        """What machine 0 has found before the run starts, its processes for that having ended: the same for all."""
        if self.is_head:
            self._send_all({"found": exit_code})
            return exit_code
        deadline_s = time.monotonic() + within_s
        while self._found is None and time.monotonic() < deadline_s and not self._is_settled():
            readable([guest.line for guest in self._others.values()], _LISTEN_S)
            self.news()
        return (exit_code or EXIT_RUN_FAILED) if self._found is None else self._found

    def missed(self) -> Departure | None:
        """Who has ended before machine 0 has found anything, so that it is not to be waited for; does not wait."""
        self.news()
        return None if self._found is not None else next(iter(self._departed.values()), None)

    def leave(self, exit_code: int) -> None:
        """Tells that this launcher was asked to end before the run has started."""
        mine = Departure(node=self.node, host=socket.gethostname(), exit_code=exit_code)
        self._send_all({"ended": asdict(mine)})

    @contextmanager
    def minded(self, silence_s: float) -> Iterator[None]:
        """A block in which a machine that has not answered for so long is lost, where it might be silent for longer."""
        before_s = self._silence_s
        self._mind(min(silence_s, before_s))
        try:
            yield
        finally:
            self._mind(before_s)

    def _mind(self, silence_s: float) -> None:
        self._silence_s = silence_s
        for guest in self._others.values():
            if not guest.line.is_gone:
                guest.line.keep_alive(silence_s)

    def again(self, text: str, settled: Mapping[str, Any]) -> None:
        """Machine 0: all start their processes again."""
        self._send_all({"again": text, "settled": dict(settled)})
        self._departed.clear()

    def word(self) -> tuple[str, dict[str, Any]] | None:
        """Another machine: what is said of the next attempt and what it has settled; None where there is none."""
        match self._verdict:
            case {"again": str(text), "settled": dict(settled)}:
                self._verdict = None
                self._departed.clear()
                return text, settled
            case _:
                return None

    def close(self) -> None:
        """The run is over on this machine; machine 0 lets the others go."""
        if self.is_head:
            self._send_all({"over": True})
        for guest in self._others.values():
            guest.line.close()

    @property
    def handles(self) -> list[int]:
        """What another process has to inherit."""
        return [guest.line.fileno() for guest in self._others.values()]

    def to_json(self) -> dict[str, Any]:
        """What another process needs to go on with the connections that it inherits."""
        others = [
            {"rank": each.rank, "host": each.host, "handle": each.line.fileno()} for each in self._others.values()
        ]
        return {"node": self.node, "silence_s": self._silence_s, "others": others}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Peers:
        """The connections that this process has inherited."""
        others = [
            Guest(rank=each["rank"], host=each["host"], line=Line(socket.socket(fileno=each["handle"])))
            for each in fields["others"]
        ]
        return cls(fields["node"], others, silence_s=fields["silence_s"])


def _in_all(ending: Ending, departed: Sequence[Departure], *, is_told: bool) -> Ending:
    """This machine's ending with what is known of the others'; `is_told`: a rank here has a cause of its own."""
    bad = [departure for departure in departed if not departure.is_orderly]
    if not bad:
        return ending
    # One that says what went wrong says more than one that was lost, and that more than one that had to follow.
    bad.sort(key=lambda departure: (not departure.failure, departure.exit_code is None, departure.node))
    first = bad[0]
    code = ending.exit_code
    if code in (EXIT_OK, EXIT_TERMINATED):
        code = EXIT_RUN_FAILED
    if not is_told and first.exit_code in (EXIT_CONFIG, EXIT_HARDWARE):
        code = first.exit_code
    return replace(ending, exit_code=code, elsewhere=str(first.finding()))
