"""What a process takes of the processor and of memory, its own or that of another one here.

Knows the system's accounts of a process and its threads. Does not know its children.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.meters.figures import Figures, Missing, Rate, read_each

GONE = "process gone"
PROCESS_METERS = ("cpu_pct", "host_rss_bytes")


class OwnProcessor:
    """How much of the processor this process takes, from one asking to the next."""

    def __init__(
        self, *, used: Callable[[], float] = time.process_time, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._used, self._clock = used, clock
        self._last = used(), clock()

    def pct(self) -> float | None:
        """Per cent of one core since the last asking, at first since it was made; 250: two and a half cores."""
        last, self._last = self._last, (self._used(), self._clock())
        elapsed_s = self._last[1] - last[1]
        return 100 * (self._last[0] - last[0]) / elapsed_s if elapsed_s > 0 else None


class ProcessMeters:
    """Reads a process of this host again and again; ProcessLookupError where there is none.

    `since` (Unix seconds): it was alive then, so that one which began later only bears the number of one that is gone.
    """

    def __init__(self, pid: int, *, since: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        import psutil

        self._clock = clock
        self._gone = (psutil.NoSuchProcess, psutil.ZombieProcess)
        self._denied = psutil.AccessDenied
        try:
            self._process = psutil.Process(pid)
            began = self._process.create_time()
        except psutil.Error as error:
            raise ProcessLookupError(f"no process {pid}") from error
        if since is not None and began > since + 1.0:
            raise ProcessLookupError(f"process {pid} is another one")
        self._rate = Rate()

    def read(self) -> Figures:
        """PROCESS_METERS."""
        return read_each({"cpu_pct": self._cpu_pct, "host_rss_bytes": self._rss_bytes})

    def _cpu_pct(self) -> float:
        def seconds() -> float:
            times = self._process.cpu_times()
            return float(times.user + times.system)

        return 100 * self._rate.per_s(self._told(seconds), self._clock())

    def _rss_bytes(self) -> int:
        # A process that has ended and whose end nobody asked for has none.
        if not (size := self._told(lambda: self._process.memory_info().rss)):
            raise Missing(GONE)
        return int(size)

    def _told(self, ask: Callable[[], float]) -> float:
        try:
            return ask()
        except self._gone as error:
            raise Missing(GONE) from error
        except self._denied as error:
            raise Missing("permission") from error
