"""Waiting for something that other processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Comes back once it is true; AssertionError where that takes longer."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)
