"""Signals that ask a run to end: noted here, acted on at the next edge of a step.

Knows which signals. Does not know steps or ranks: status.py tells the other ranks. A second signal
of the same kind ends the process as if nobody listened.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_TERMINATING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Stop:
    """How often this process was asked to end; read by the loop, written by signal handlers."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminations = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.terminations += 1
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def listening() -> Iterator[Stop]:
    """Notes signals within the block, in the main thread of a process; elsewhere Python delivers none."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield stop
        return
    before = {number: signal.signal(number, stop.note) for number in (signal.SIGINT, *_TERMINATING)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
