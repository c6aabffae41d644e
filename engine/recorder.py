"""What a rank writes of its run, and in which order: events, and the phases they stand in.

Knows the event file of a rank and how a failure is told. Does not know what happens in a phase (loop.py).
"""

from __future__ import annotations

import socket
import time
from typing import Any

from engine.errors import EXIT_RUN_FAILED, TitanError
from engine.events import EventLog, Kind
from engine.status import NonFiniteStep


class Recorder:
    """Writes events of this rank, into the run folder if there is one, and keeps the steps."""

    def __init__(self, log: EventLog | None) -> None:
        self._log = log
        self._phase: str | None = None
        self._began_s = 0.0
        self.steps: list[dict[str, Any]] = []

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


def failure_fields(failure: BaseException, rank: int) -> dict[str, Any]:
    """The fields of `run_ended` for an exception of this rank, or one that says which rank's it is."""
    host = socket.gethostname()
    if isinstance(failure, NonFiniteStep):
        rank, host = failure.rank, failure.host
    name = type(failure).__name__
    return {
        "reason": f"{name}: {failure}",
        "exit_code": failure.exit_code if isinstance(failure, TitanError) else EXIT_RUN_FAILED,
        "first_failure": {"rank": rank, "host": host, "type": name, "message": str(failure)},
    }
