"""What a rank does with the seconds of a step, in shares of it, where a step was profiled.

Knows what a comparison calls the parts. Does not know how an event tells of them (monitor.profile), which ranks are
asked, nor what is planned.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from engine.events import Event
from titancli.monitor.profile import Profile

Shares: TypeAlias = Mapping[str, float]
"""Percent of a step by cause, and of exposed communication by axis too: `exposed_comm`, `exposed_comm.tp`."""
CAUSES = ("compute", "exposed_comm", "bubble", "data", "host", "other")
"""The parts that sum to the step."""


def shares_of(event: Event) -> Shares | None:
    """The shares that a `step` event tells of; None where its steps were not profiled."""
    profile = Profile.read(event)
    if profile is None:
        return None
    by_axis = {f"exposed_comm.{axis}": share for axis, share in profile.exposed_pct.items()}
    return {"compute": 100 * profile.compute_s / profile.step_s, **profile.idle, **by_axis}


def mean_of(shares: Iterable[Shares]) -> dict[str, float] | None:
    """The mean of each cause over those that tell of it; None of none."""
    found: dict[str, list[float]] = {}
    for each in shares:
        for cause, value in each.items():
            found.setdefault(cause, []).append(value)
    return {cause: statistics.fmean(values) for cause, values in found.items()} or None
