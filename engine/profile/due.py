"""Which steps are profiled.

Knows how often people ask for it and what it has cost. Does not know how a step is profiled (window.py).

A breakdown goes with a step that is reported anyway. The time that profiles took of the run is kept below one part in
two hundred: where steps are short, they are rarer than asked for. A trace that somebody wants to keep is not delayed.
"""

from __future__ import annotations

from engine.config import Config

_COSTS_AT_MOST = 0.005
# The step before is recorded too, and the first one of a run compiles.
_FIRST_AFTER = 2


class Due:
    """Tells rank 0 which step to profile next; the others follow its word."""

    def __init__(self, config: Config, *, first_step: int) -> None:
        self._log_freq, self._last_step = config.metrics.log_freq, config.training.steps
        self._every = config.metrics.breakdown_freq
        profiling = config.profiling
        self._keeps_every = profiling.profile_freq if profiling.enable_profiling else 0
        self._earliest = first_step + _FIRST_AFTER
        self._next = self._earliest
        self._not_before_s = 0.0

    def is_due(self, step: int, now_s: float) -> bool:
        """Whether `step` should be profiled, as far as is known some steps before it; `now_s` of a steady clock."""
        if step < self._earliest or step > self._last_step:
            return False
        if self.is_kept(step):
            return True
        is_reported = step % self._log_freq == 0 or step == self._last_step
        return bool(self._every) and is_reported and step >= self._next and now_s >= self._not_before_s

    def is_kept(self, step: int) -> bool:
        """Whether the trace of a step is kept as a file."""
        return bool(self._keeps_every) and step % self._keeps_every == 0

    def done(self, step: int, *, cost_s: float, now_s: float) -> None:
        """A profile of `step` was taken, and took so long beside the step itself."""
        self._next = step + self._every
        self._not_before_s = now_s + cost_s / _COSTS_AT_MOST
