"""Work that goes on in a thread while the main thread trains: what became of it, and when.

Knows one piece of work at a time. Does not know what it does (saving.py).

A thread, and no process as torch's async_save offers too (AsyncCheckpointerType.PROCESS): what takes time in writing a
checkpoint lets go of the interpreter's lock (checksums, writes, syncs), while a process is handed the whole state by a
pipe. On 2 busy cores, 1.2 GB in 900 tensors, beside a loop of Python: the thread wrote for 3 to 7 s and left that loop
70 % of its rate; torch's process took 20 to 25 s, first stood in the way for 0.5 to 3.4 s, and left 51 to 75 %. It also
has a group of ranks, failures and an end of its own, all of which a thread shares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """One piece of work, begun when this is made, in a thread that ends with the process; `at_once`: here."""

    def __init__(self, name: str, work: Callable[[], T], *, at_once: bool = False) -> None:
        self._work, self._began_s = work, time.perf_counter()
        self._made: list[T] = []
        self.failure: BaseException | None = None
        self.seconds = 0.0
        self._thread: threading.Thread | None = None
        if at_once:
            self._run()
        else:
            self._thread = threading.Thread(target=self._run, daemon=True, name=name)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._made.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - raised by whoever asks what was made
            self.failure = failure
        self.seconds = time.perf_counter() - self._began_s

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, within_s: float | None = None) -> bool:
        """Waits for its end; whether it came in time."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self.is_over

    def made(self) -> T:
        """What it made, waited for; raises what it raised."""
        self.wait()
        if self.failure is not None:
            raise self.failure
        (made,) = self._made
        return made
