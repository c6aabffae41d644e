"""A worker ends with the process that started it, torchrun, in whatever way that ended.

Knows its parent. Does not know steps: the signal that it sends itself is one that the run listens to (stop.py), so
that a checkpoint may still be written. One that does not come to an end by itself is killed after a while, and so is
one that hangs: nobody else is left to do it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

ENDS_WITHIN_S = 7.0
"""Seconds that a worker gets to end by itself once its parent is gone."""

SHOWS_STACKS = signal.SIGQUIT
"""Has a worker write the stacks of its threads to its log, even where none of them can run (engine/pulse)."""
SHOWN_BY_ITSELF = "; stacks of all its threads:"
"""How the line ends with which a worker that can run does the same by itself."""

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


def has_torchrun() -> bool:
    """Whether torchrun has started this process, on a system that can tell of its end."""
    return sys.platform.startswith("linux") and "TORCHELASTIC_RUN_ID" in os.environ


def end_with_parent(*, within_s: float = ENDS_WITHIN_S) -> None:
    """From here on this process does not outlive torchrun."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent or not _is_torchrun(parent):
        # It died before it could be asked for a signal.
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=_outlast, args=(parent, within_s), daemon=True, name="end with torchrun").start()


def die_with(parent: int) -> None:
    """From here on this process is killed as soon as its parent, of that number, is gone, however that ended."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before it could be asked for a signal.
        os.kill(os.getpid(), signal.SIGKILL)


def _is_torchrun(pid: int) -> bool:
    """Whether a process is the agent that starts workers, and not one that adopted an orphan; true where unknown."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(b"torchrun" in word or word.startswith(b"torch.distributed.") for word in words)


def _outlast(parent: int, within_s: float) -> None:
    """Waits for the end of the parent, and then for its own."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    time.sleep(within_s)
    os.kill(os.getpid(), signal.SIGKILL)
