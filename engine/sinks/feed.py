"""A sink and the thread that feeds it, so that nothing it does is waited for.

Knows a bounded queue, and that a sink which fails is told of once and then left alone. Does not know any sink.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.events import Event

_MOST_WAITING = 1000


class Sink(Protocol):
    """What takes the events of a run in.

    `load` is called by the training thread, before anything is trained; all else by one other thread.
    """

    key: str
    """The setting that asks for it."""
    name: str
    """What people call it."""

    def load(self) -> None:
        """Imports what it needs: two threads that import at once may each find the other's modules half made."""

    def take(self, events: Sequence[Event]) -> None:
        """The next events, as they were written. Whatever it raises ends it."""

    def close(self) -> None:
        """No more events come."""

    def advice(self, failure: BaseException) -> str:
        """What a person can do about a failure of it; TimeoutError where it has not come to its end in time."""


class Feed:
    """Hands events on to a sink; `say` tells a person, on any thread.

    Until `begin` is called events only wait; one that never begins opens no sink.
    """

    def __init__(self, sink: Sink, *, say: Callable[[str], None], most_waiting: int = _MOST_WAITING) -> None:
        self.sink, self._say, self._most_waiting = sink, say, most_waiting
        self._waiting: list[Event] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_off = self._is_closing = False
        self._left_out = self._in_hand = 0

    def put(self, event: Event) -> None:
        """Takes an event in and returns at once; one for which there is no room is counted, and the first one told."""
        with self._changed:
            if self._is_off or self._is_closing:
                return
            has_room = len(self._waiting) < self._most_waiting
            if has_room:
                self._waiting.append(event)
                self._changed.notify()
            else:
                self._left_out += 1
            is_first = self._left_out == 1 and not has_room
        if is_first:
            self._tell("does not keep up, and misses events")

    @property
    def left_out(self) -> str:
        """What a sink has missed, for people; empty where that is nothing."""
        count = self._left_out
        return f"{self._head} has missed {count:,} event{'s' if count != 1 else ''}" if count else ""

    def close(self, within_s: float) -> None:
        """Ends it, once it has taken everything in; what it has not by then is said, and given up."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is None or self._is_off:
            return
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._is_off = True
            count = len(self._waiting) + self._in_hand
            what = f"{count:,} event{'s' if count != 1 else ''}" if count else "the end of the run"
            self._tell(f"has not taken in {what} within {within_s:.0f} s; {self.sink.advice(TimeoutError())}")

    def begin(self) -> None:
        """Starts its thread, unless that runs; imports what the sink needs, in this one."""
        if self._thread is not None or self._is_off:
            return
        try:
            self.sink.load()
        except Exception as failure:  # noqa: BLE001 - told, and training goes on without it
            self._give_up(failure)
            return
        self._thread = threading.Thread(target=self._run, name=f"titan-{self.sink.key}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while events := self._next():
                self.sink.take(events)
            self.sink.close()
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - told, and training goes on without it
            self._give_up(failure)

    def _next(self) -> list[Event]:
        """All events that wait; none once no more can come."""
        with self._changed:
            self._in_hand = 0
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            events, self._waiting = self._waiting, []
            self._in_hand = len(events)
        return events

    def _give_up(self, failure: BaseException) -> None:
        with self._changed:
            if self._is_off:
                return
            self._is_off = True
            self._waiting = []
        first = next(iter(str(failure).splitlines()), "")
        words = f"{type(failure).__name__}: {first}".removesuffix(": ")
        self._tell(f"takes in no more of this run ({words}); {self.sink.advice(failure)}")

    @property
    def _head(self) -> str:
        return f"{self.sink.key}: {self.sink.name}"

    def _tell(self, what: str) -> None:
        self._say(f"{self._head} {what}")
