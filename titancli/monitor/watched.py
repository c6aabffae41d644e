"""A run folder that is looked at again and again: what stands in it now, and whether more is to come.

Knows the order of reading, and what becomes of a look where the folder is gone. Does not know events (fold), files
(follow), meters (live) nor how a look is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import Finding
from titancli import report
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower, Launcher, is_over, judge, read_config, read_plan
from titancli.monitor.frame import Frame, frame
from titancli.monitor.run_state import RunState
from titancli.monitor.signs import is_held

if TYPE_CHECKING:
    from titancli.monitor.live import LiveMeters

# A folder that is not there for so many looks does not come back: one that is moved aside for a new run is there soon.
_GONE_LOOKS = 10


class Watched:
    """A run folder with what was read of it so far; `is_over` where the last look saw all that there will be.

    With `now` it is looked at as at that time, by what its ranks wrote alone: as a picture of a recorded run.
    """

    def __init__(self, run: Path, *, now: float | None = None) -> None:
        self.is_over = False
        self._run, self._now = run, now
        self._follower = Follower(run)
        self._last: Frame | None = None
        self._looks_gone = 0
        self._meters: LiveMeters | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the folder was taken away."""
        return self._looks_gone >= _GONE_LOOKS

    def gone(self) -> Finding:
        """That the folder was taken away."""
        run = self._run
        message = f"the folder of the run is gone: {run} was deleted or moved while it was watched"
        return report.error("U110", message, "name the folder that it is in now, or another run")

    def look(self) -> Frame:
        """What stands in the folder now."""
        if self._last is not None and not os.path.isdir(self._run):
            self._looks_gone += 1
            self.is_over = self.is_gone
            said = f"{self._run} is not there: deleted or moved; this is the last that was read of it"
            return replace(self._last, time=self._time(), alerts=(said, *self._last.alerts))
        self._looks_gone = 0
        self._last = self._read()
        return self._last

    def close(self) -> None:
        """Gives back what meters hold."""
        if self._meters is not None:
            self._meters.close()

    def _read(self) -> Frame:
        # The launcher is read first: when it has written how the run ended, all events are there to be read.
        launcher = Launcher.read(self._run)
        seen = self._follower.read()
        holds = is_held(self._run, launcher)
        state = judge(seen, launcher, holds=holds)
        self.is_over = is_over(state, launcher, holds=holds)
        failures = failures_of(self._run, seen) if state == "failed" else []
        config = read_config(self._run)
        return frame(
            self._run.resolve().name,
            seen,
            state,
            failure=failures[0] if failures else None,
            config=config,
            plan=seen.plan or read_plan(self._run),
            now=self._time(),
            live={} if self.is_over else self._live(seen, config),
        )

    def _live(self, seen: RunState, config: Mapping[str, Any]) -> Mapping[int, Mapping[str, Any]]:
        """What ranks on this machine do right now."""
        if self._now is not None or not seen.ranks:
            return {}
        if self._meters is None:
            from titancli.monitor.live import LiveMeters

            self._meters = LiveMeters(config=config)
        return self._meters.read(seen.ranks.values())

    def _time(self) -> float:
        return time.time() if self._now is None else self._now
