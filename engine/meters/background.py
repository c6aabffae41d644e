"""Work that may hang, in a thread of its own: a driver that does not answer holds nobody up.

Knows one thread, how long it has been at its work, and how to leave it behind. Does not know the work.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

Work: TypeAlias = Callable[[], None]


class Background:
    """One thread that does what it is asked, one after the other; what raises is told to `on_fault`, and it goes on.

    The thread is a daemon: a process ends without it, wherever it hangs.
    """

    def __init__(self, name: str, *, on_fault: Callable[[Exception], None]) -> None:
        self._on_fault = on_fault
        self._asked: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._began_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, work: Work) -> bool:
        """Has it done after what it is at; False where something waits already, and this is not done."""
        if not self._asked.empty():
            return False
        self._asked.put(work)
        return True

    def busy_s(self) -> float:
        """How long it has been at the same work."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def finish(self, last: Work, *, timeout_s: float) -> bool:
        """Ends it after what it was asked and one thing more; False where that takes longer, and it is left behind."""
        self._asked.put(last)
        self._asked.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            self._began_s = time.monotonic()
            try:
                work()
            except Exception as fault:  # noqa: BLE001 - whatever a driver's library does, it ends nobody's run
                self._on_fault(fault)
            finally:
                self._began_s = None
