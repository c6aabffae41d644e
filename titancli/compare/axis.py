"""Numbers beside a drawing: where ticks stand on an axis, and how they read.

Knows round numbers and units. Does not know what is drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from titancli.compare.curve import Along, Points

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LARGE = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_TIMES = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
# A beginning of so much of the axis is not shown where it alone takes more than half of the height.
_BEGINNING, _TOO_HIGH = 0.05, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The ends of an axis, the places of its ticks and their texts, and what it counts."""

    low: float
    high: float
    ticks: tuple[float, ...]
    texts: tuple[str, ...]
    label: str

    def share(self, place: float) -> float:
        """A place as a part of the axis, 0 at its low end and 1 at its high one."""
        return (place - self.low) / (self.high - self.low)


def along_scale(curves: Sequence[Points], along: Along, *, most_ticks: int) -> Scale:
    """The axis below: from 0 to where the longest curve ends."""
    high = max((points[-1][0] for points in curves if points), default=1.0) or 1.0
    unit, label = _unit(high, along)
    ticks = ticks_between(0.0, high, most_ticks, unit=unit, whole=along != "time")
    texts = tuple(_number(tick / unit) + ("" if along == "time" else _letter(unit, tick)) for tick in ticks)
    return Scale(low=0.0, high=high, ticks=ticks, texts=texts, label=label)


def loss_scale(curves: Sequence[Points], *, most_ticks: int) -> tuple[Scale, bool]:
    """The axis at the left, and whether the first losses lie above it, because they would flatten all others."""
    losses = [loss for points in curves for _, loss in points]
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
    end = max((points[-1][0] for points in curves if points), default=0.0)
    later = [loss for points in curves for place, loss in points if place > _BEGINNING * end]
    is_cut = bool(later) and max(later) - low < _TOO_HIGH * (high - low)
    if is_cut:
        high = max(later)
    if high <= low:
        # One level: some room around it.
        room = abs(low) * 0.01 or 1.0
        low, high = low - room, high + room
    ticks = ticks_between(low, high, most_ticks)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) + (1 if _is_quarter(step) else 0)
    texts = tuple(f"{tick:.{digits}f}" for tick in ticks)
    return Scale(low=low, high=high, ticks=ticks, texts=texts, label="loss"), is_cut


def ticks_between(low: float, high: float, most: int, *, unit: float = 1.0, whole: bool = False) -> tuple[float, ...]:
    """At most so many places at round numbers of a unit, as close as that allows; `whole`: none between 1 and 2."""
    exponent = math.floor(math.log10((high - low) / unit / most)) - 1
    steps = (each * 10.0**power * unit for power in itertools.count(exponent) for each in _STEPS)
    if whole:
        steps = (step for step in steps if step == round(step))
    return next(ticks for step in steps if 0 < len(ticks := _multiples(step, low, high, most)) <= most)


def _multiples(step: float, low: float, high: float, most: int) -> tuple[float, ...]:
    """The multiples of a step within two ends, as far as one more than are wanted."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, min(last, first + most) + 1))


def _is_quarter(step: float) -> bool:
    """Whether a step is 2.5 of a power of ten, which takes one digit more."""
    mantissa: float = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
    return bool(abs(mantissa - 2.5) < 1e-6)


def _unit(high: float, along: Along) -> tuple[float, str]:
    if along == "time":
        unit, name = next((each for each in _TIMES if high >= 3 * each[0]), _TIMES[-1])
        return unit, f"{name} of training"
    unit = next((size for size, _ in _LARGE if high >= 2 * size), 1.0)
    return unit, along


def _letter(unit: float, tick: float) -> str:
    return next((f" {letter}" for size, letter in _LARGE if size == unit), "") if tick else ""


def _number(value: float) -> str:
    return f"{value:.6g}"
