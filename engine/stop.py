"""Signals that ask a run to end: noted here, acted on at the next edge of a step.

Knows which signals, and which of them are meant twice. Does not know steps or ranks: status.py tells the other ranks.

SIGTERM, SIGHUP and SIGUSR1 are counted and never end the process by themselves: torchrun, srun and containers send
them again to processes that are saving, and who has no more patience sends SIGKILL. SIGINT comes from a person: one
that comes within a second is the same press of Ctrl-C, which a terminal and torchrun both hand on; a later one ends
the process as if nobody listened.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_TERMINATING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAME_PRESS_S = 1.0
"""A SIGINT this soon after the first is the same one, handed on by somebody else."""


class Stop:
    """How often this process was asked to end; read by the loop, written by signal handlers."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminations = 0
        self._interrupted_s = 0.0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if number != signal.SIGINT:
            self.terminations += 1
            return
        now_s = time.monotonic()
        if self.interrupts and now_s - self._interrupted_s > SAME_PRESS_S:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        elif not self.interrupts:
            self.interrupts, self._interrupted_s = 1, now_s


@contextmanager
def listening() -> Iterator[Stop]:
    """Notes signals within the block, in the main thread of a process; elsewhere Python delivers none."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield stop
        return
    before = {
        number: signal.signal(number, stop.note)
        for number in (signal.SIGINT, *_TERMINATING)
        # nohup asks for SIGHUP to be ignored, and that stays so.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
