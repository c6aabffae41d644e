"""Signals that a process does not hear while it starts, as it will ignore them once it runs.

Knows that a mask is inherited. Does not know who starts: a Ctrl-C in the terminal, or a scheduler's notice to the
group, would end a worker with a stack on the screen while it still imports.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

WORKERS_IGNORE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""What asks the training process to end: its workers read on for it, as it may still save."""


@contextmanager
def deaf_from_the_start(*numbers: signal.Signals) -> Iterator[None]:
    """A process that is started within never hears these signals; this one hears them at the end of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
