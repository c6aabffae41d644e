"""Where the time of one step went on one rank, as its `step` event with a profile tells.

Knows the field `breakdown`. Does not know the other ranks, nor what is to be done about it (diagnosis, alerts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titancli.monitor.values import as_number, as_whole

CAUSES = ("data", "host", "bubble", "other")
"""Why a rank may not compute, beside communication: keys of `idle`, which are fields of a breakdown with `_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds of a step; `exposed_comm_s` is by mesh axis. None is not known.

    `step_s` is what the steps of its report took on average, and the parts are scaled to it.
    """

    step: int
    time: float
    step_s: float
    compute_s: float
    exposed_comm_s: Mapping[str, float]
    data_s: float | None = None
    host_s: float | None = None
    bubble_s: float | None = None
    other_s: float | None = None

    @property
    def own_s(self) -> float:
        """What the rank did not wait for others: of ranks with equal work, the slow one has more of it."""
        return self.step_s - sum(self.exposed_comm_s.values()) - (self.bubble_s or 0.0)

    @property
    def idle_pct(self) -> float:
        """Share of the step in which nothing was computed."""
        return 100 * (1 - self.compute_s / self.step_s)

    @property
    def idle(self) -> dict[str, float]:
        """Percent of the step by cause; a cause that is not known is not there."""
        known = {cause: getattr(self, f"{cause}_s") for cause in CAUSES}
        shares = {cause: 100 * seconds / self.step_s for cause, seconds in known.items() if seconds is not None}
        return shares | {"exposed_comm": sum(self.exposed_pct.values())}

    @property
    def exposed_pct(self) -> dict[str, float]:
        """Percent of the step in which communication was in the open, by mesh axis."""
        return {axis: 100 * seconds / self.step_s for axis, seconds in self.exposed_comm_s.items()}

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Profile | None:
        """The profile of a `step` event; None where it has none, or one without sense."""
        breakdown = event.get("breakdown")
        if not isinstance(breakdown, Mapping) or breakdown.get("compute_s") is None:
            return None
        step, step_s = as_whole(event.get("step")), as_number(event.get("step_s"))
        compute_s = as_number(breakdown.get("compute_s"))
        if step is None or compute_s is None or not step_s or step_s < 0:
            return None
        waits = breakdown.get("exposed_comm_s")
        by_axis = {str(axis): as_number(told) for axis, told in waits.items()} if isinstance(waits, Mapping) else {}
        return cls(
            step=step,
            time=as_number(event.get("time")) or 0.0,
            step_s=step_s,
            compute_s=compute_s,
            exposed_comm_s={axis: seconds for axis, seconds in by_axis.items() if seconds is not None},
            **{f"{cause}_s": as_number(breakdown.get(f"{cause}_s")) for cause in CAUSES},
        )
