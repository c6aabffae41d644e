"""What a rank writes of its run, and in which order: events, and the phases they stand in.

Knows the event file of a rank and how a failure is told. Does not know what happens in a phase (loop.py).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from engine.checkpoint.agreed import FailedOnRank
from engine.events import EventLog, Kind
from engine.first_failure import FirstFailure, PeerFailed, failure_here
from engine.status import NonFiniteStep


class Recorder:
    """Writes events of this rank, into the run folder if there is one, and keeps the steps.

    Threads may share it; only the main one has phases and steps.
    """

    def __init__(self, log: EventLog | None) -> None:
        self._log = log
        self._phase: str | None = None
        self._began_s = 0.0
        self.steps: list[dict[str, Any]] = []
        self._has_ended, self._ending = False, threading.Lock()

    @property
    def phase(self) -> str | None:
        """The phase that is going on; None between phases."""
        return self._phase

    def write(self, kind: Kind, **fields: Any) -> None:
        """One event."""
        if kind == "step":
            self.steps.append(fields)
        if self._log is not None:
            self._log.write(kind, **fields)

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
            if not self._has_ended:
                self._has_ended = True
                self.write("run_ended", **fields)

    def end_failed(self, first: FirstFailure, **more: Any) -> None:
        """The last event of a run that failed; `more` are fields beside the contract's."""
        reason = f"{first.type}: {first.message}"
        self.end_run(reason=reason, exit_code=first.exit_code, first_failure=first.fields(), **more)


def failure_of(failure: BaseException, rank: int) -> FirstFailure:
    """The failure that an exception of this rank tells of: its own, or that of the rank it names."""
    if isinstance(failure, PeerFailed):
        return failure.first
    told = failure_here(failure, rank)
    if isinstance(failure, (NonFiniteStep, FailedOnRank)):
        return replace(told, rank=failure.rank, host=failure.host, place="")
    return told
