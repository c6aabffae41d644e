"""What a rank does with the seconds of a step, in shares of it, where a step was profiled.

Knows the breakdown of a `step` event. Does not know which ranks are asked, nor what is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from engine.events import Event
from titancli.monitor.values import as_number

Shares: TypeAlias = Mapping[str, float]
"""Percent of a step by cause, and of exposed communication by axis too: `exposed_comm`, `exposed_comm.tp`."""
CAUSES = ("compute", "exposed_comm", "bubble", "data", "host", "other")
"""The parts that sum to the step."""


def shares_of(event: Event) -> Shares | None:
    """The shares that a `step` event tells of; None where its steps were not profiled."""
    breakdown, step_s = event.get("breakdown"), as_number(event.get("step_s"))
    if not isinstance(breakdown, dict) or not step_s or as_number(breakdown.get("compute_s")) is None:
        return None
    seconds: dict[str, float] = {}
    for cause in CAUSES:
        value = breakdown.get(f"{cause}_s")
        if isinstance(value, dict):
            parts = {f"{cause}.{axis}": told for axis, each in value.items() if (told := as_number(each)) is not None}
            seconds |= {cause: sum(parts.values()), **parts}
        elif (told := as_number(value)) is not None:
            seconds[cause] = told
    return {cause: 100 * value / step_s for cause, value in seconds.items()}


def mean_of(shares: Iterable[Shares]) -> dict[str, float] | None:
    """The mean of each cause over those that tell of it; None of none."""
    found: dict[str, list[float]] = {}
    for each in shares:
        for cause, value in each.items():
            found.setdefault(cause, []).append(value)
    return {cause: _mean(values) for cause, values in found.items()} or None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
