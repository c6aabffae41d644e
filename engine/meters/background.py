"""Work that may hang, in a thread of its own: a driver that does not answer holds nobody up.

Knows one thread, how long it has been at its work, and how to leave it behind. Does not know the work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Work: TypeAlias = Callable[[], None]


class Background:
    """One thread that does what it is asked, one after the other; what raises is told to `on_fault`, and it goes on.

    The thread is a daemon: a process ends without it, wherever it hangs.
    """

    def __init__(self, name: str, *, on_fault: Callable[[Exception], None]) -> None:
        self._on_fault = on_fault
        self._waiting: deque[Work] = deque()
        self._came, self._is_ending = threading.Condition(), False
        self._began_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, work: Work) -> None:
        """Has it done after what it is at; once where it waits to be done already."""
        with self._came:
            if work not in self._waiting:
                self._waiting.append(work)
            self._came.notify()

    def busy_s(self) -> float:
        """How long it has been at the same work."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def finish(self, last: Work, *, timeout_s: float) -> bool:
        """Ends it after what it was asked and one thing more; False where that takes longer, and it is left behind."""
        with self._came:
            self._waiting.append(last)
            self._is_ending = True
            self._came.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            self._began_s = time.monotonic()
            try:
                work()
            except Exception as fault:  # noqa: BLE001 - whatever a driver's library does, it ends nobody's run
                self._on_fault(fault)
            finally:
                self._began_s = None

    def _next(self) -> Work | None:
        with self._came:
            while not self._waiting and not self._is_ending:
                self._came.wait()
            return self._waiting.popleft() if self._waiting else None
