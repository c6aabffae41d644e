"""Profiles of single steps while a run goes on.

Knows when a recording begins and ends, and what becomes of it. Does not know what torch records (kineto.py), how
moments are counted (breakdown.py) or how often it is due (due.py).

Two steps are recorded, and the second one counts: from when the device was done with the first until it is done with
the second, so that the host is as far ahead as always. All ranks record the same steps, by a word of rank 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.build import Built
from engine.config import Config
from engine.profile.axes import axes_of_groups, messages_of
from engine.profile.breakdown import Breakdown, Recorded, breakdown_of
from engine.profile.due import Due
from engine.profile.kineto import Recording, Seen
from engine.profile.spans import Span

NO_PROFILE = "no step is broken down: "


class Profiler:
    """What is recorded now, and the newest breakdown that was not told yet; `warn` takes why there is none."""

    def __init__(
        self, config: Config, built: Built, *, first_step: int, rank: int, run: Path | None, warn: Callable[[str], None]
    ) -> None:
        self.due = Due(config, first_step=first_step)
        self._device, self._rank, self._run, self._warn = built.device, rank, run, warn
        self._axes = axes_of_groups(built.world)
        self._target: int | None = None
        self._recording: Recording | None = None
        self._queued: list[int] = []
        self._reading: list[Span] = []
        self._cost_s = 0.0
        self._works = True
        self._breakdown: Breakdown | None = None
        if config.metrics.breakdown_freq or config.profiling.enable_profiling:
            # The first recording of a process takes long, whenever it is.
            self._tried(self._warm_up)

    def ask(self, step: int) -> bool:
        """Whether `step`, which is not the next but the one after it, should be profiled; rank 0 asks for all."""
        may = self._rank == 0 and self._works and self._target is None
        return may and self.due.is_due(step, time.monotonic())

    def expect(self, step: int) -> None:
        """All ranks agreed to profile this step."""
        self._target = step if self._works else None

    def before(self, step: int) -> None:
        """A step is about to be queued, and nothing of it was read yet."""
        if self._target is not None and step == self._target - 1:
            self._queued, self._reading = [], []
            self._tried(self._begin)

    def read(self, begin_ns: int, end_ns: int) -> None:
        """The host read a batch from then to then, in nanoseconds of the Unix clock."""
        if self._recording is not None:
            self._reading.append((begin_ns, end_ns))

    def queued(self) -> None:
        """All of a step is queued."""
        if self._recording is not None:
            self._queued.append(time.time_ns())

    def is_over(self, step: int) -> bool:
        """Whether the step that is profiled is queued: the device is waited for, and `finish` called."""
        return self._recording is not None and step == self._target

    def finish(self) -> None:
        """Ends the recording and works it out; the device has been waited for."""
        self._tried(self._finish)

    def take(self) -> Breakdown | None:
        """The breakdown that nobody took yet."""
        taken, self._breakdown = self._breakdown, None
        return taken

    def close(self) -> None:
        """Ends a recording that nobody will finish."""
        if self._recording is not None:
            self._tried(self._recording.stop)
            self._recording = None

    def _warm_up(self) -> None:
        if self._device.type == "cuda":
            Recording(self._device, with_host=False).stop()

    def _begin(self) -> None:
        assert self._target is not None, "a recording is of a step"
        began_s = time.perf_counter()
        self._recording = Recording(self._device, with_host=self.due.is_kept(self._target))
        self._cost_s = time.perf_counter() - began_s

    def _finish(self) -> None:
        recording, target = self._recording, self._target
        assert recording is not None, "nothing is recorded"
        assert target is not None, "a recording is of a step"
        began_s = time.perf_counter()
        self._recording = self._target = None
        recording.stop()
        self._breakdown = self._worked_out(recording.seen())
        if self.due.is_kept(target) and self._run is not None:
            recording.keep(self._run / "profiles" / f"step-{target:08d}-rank-{self._rank:05d}.json.gz")
        now_s = time.perf_counter()
        self.due.done(target, cost_s=self._cost_s + now_s - began_s, now_s=time.monotonic())

    def _worked_out(self, seen: Seen) -> Breakdown | None:
        step = self._window(seen)
        if step is None:
            raise RuntimeError("the GPU tells nothing of its kernels (CUPTI is taken, or not permitted)")
        recorded = Recorded(
            step=step,
            computing=seen.computing,
            messages=messages_of(seen.sent, self._axes),
            # A CPU waits for nobody but itself: all that is left of its step is the interpreter's.
            waiting_for_host=seen.waiting_for_host() if self._device.type == "cuda" else [step],
            reading=self._reading,
        )
        return breakdown_of(recorded, axes=tuple(dict.fromkeys(self._axes.values())))

    def _window(self, seen: Seen) -> Span | None:
        before, after = self._queued
        if self._device.type != "cuda":
            return before, after
        begin, end = seen.end_of(before), seen.end_of(after)
        return None if begin is None or end is None or end <= begin else (begin, end)

    def _tried(self, work: Callable[[], None]) -> None:
        """Does it; a profiler that fails ends no run: it is said once, and no other step is profiled."""
        try:
            if self._works:
                work()
        except (RuntimeError, OSError) as failure:
            self._works, self._recording, self._target = False, None, None
            self._warn(f"{NO_PROFILE}{failure}")
