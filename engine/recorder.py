"""What a rank writes of its run, and in which order: events, and the phases they stand in.

Knows the event file of a rank, that sinks get what is written there, and how a failure is told. Does not know what
happens in a phase (loop.py), nor what a sink makes of an event (sinks/).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from engine.checkpoint.agreed import FailedOnRank
from engine.errors import EXIT_OK
from engine.events import EventLog, Kind
from engine.first_failure import FirstFailure, PeerFailed, failure_here
from engine.sinks.feed import Feed, Sink
from engine.status import NonFiniteStep

_SINKS_OPEN_AT = ("run_started", "run_ended")
# What sinks may take to end with their run: one that is complete waits for the network, one that failed hardly.
_SINKS_END_WITHIN_S, _SINKS_LEAVE_WITHIN_S = 10.0, 2.0


class Recorder:
    """Writes events of this rank, into the run folder if there is one and to sinks, and keeps the steps.

    Threads may share it; only the main one has phases and steps.
    """

    def __init__(self, log: EventLog | None, sinks: Sequence[Sink] = ()) -> None:
        self._log = log
        # Sinks get events in the order in which they are written; one that is put in may itself be told of.
        self._writing = threading.RLock()
        self._feeds = tuple(Feed(sink, say=self._say) for sink in sinks)
        self._phase: str | None = None
        self._began_s = 0.0
        self.steps: list[dict[str, Any]] = []
        self._has_ended, self._ending = False, threading.Lock()
        self._sinks_end_within_s = _SINKS_LEAVE_WITHIN_S

    @property
    def phase(self) -> str | None:
        """The phase that is going on; None between phases."""
        return self._phase

    def write(self, kind: Kind, **fields: Any) -> None:
        """One event; OSError where the disk does not take it."""
        if kind == "step":
            self.steps.append(fields)
        with self._writing:
            if self._log is not None:
                self._log.write(kind, **fields)
            for feed in self._feeds:
                feed.put({"time": time.time(), "kind": kind, **fields})
        if kind in _SINKS_OPEN_AT:
            for feed in self._feeds:
                feed.begin()

    @contextmanager
    def sinks_open(self) -> Iterator[None]:
        """At its end sinks get a while to take in what they have not yet."""
        try:
            yield
        finally:
            self._close_sinks()

    def _close_sinks(self) -> None:
        until_s = time.monotonic() + self._sinks_end_within_s
        for feed in self._feeds:
            feed.close(max(0.0, until_s - time.monotonic()))

    def _say(self, message: str) -> None:
        """Tells of a sink: as a warning, or once the run has ended in the log of the rank alone."""
        # Neither a full disk nor a closed stream is a sink's to tell of.
        with contextlib.suppress(OSError, ValueError):
            if self._has_ended:
                print(message, file=sys.stderr, flush=True)
            else:
                self.write("warning", message=message)

    def begin(self, phase: str) -> None:
        """Ends the phase that is going on, if any, and begins another. A run that fails leaves its phase open."""
        self.end()
        self._phase, self._began_s = phase, time.perf_counter()
        self.write("phase", name=phase, state="begin", seconds=None)

    def end(self) -> None:
        """Ends the phase that is going on, if any."""
        if self._phase is not None:
            self.write("phase", name=self._phase, state="end", seconds=time.perf_counter() - self._began_s)
        self._phase = None

    def end_run(self, **fields: Any) -> None:
        """The last event, `run_ended`; only the first one counts, whichever thread it comes from."""
        with self._ending:
            if self._has_ended:
                return
            for feed in self._feeds:
                if feed.left_out:
                    self._say(feed.left_out)
            self._has_ended = True
            if fields["exit_code"] == EXIT_OK:
                self._sinks_end_within_s = _SINKS_END_WITHIN_S
            self.write("run_ended", **fields)

    def end_failed(self, first: FirstFailure, **more: Any) -> None:
        """The last event of a run that failed; `more` are fields beside the contract's."""
        reason = f"{first.type}: {first.message}"
        self.end_run(reason=reason, exit_code=first.exit_code, first_failure=first.fields(), **more)

    def leave_failed(self, first: FirstFailure) -> None:
        """The same where the process is ended from another thread right after it."""
        self.end_failed(first)
        self._close_sinks()


def failure_of(failure: BaseException, rank: int) -> FirstFailure:
    """The failure that an exception of this rank tells of: its own, or that of the rank it names."""
    if isinstance(failure, PeerFailed):
        return failure.first
    told = failure_here(failure, rank)
    if isinstance(failure, (NonFiniteStep, FailedOnRank)):
        return replace(told, rank=failure.rank, host=failure.host, place="")
    return told
