"""Figures that may be missing, each with the reason why: never 0 in place of what is not known.

Knows how meters are read one by one, and how a rate is taken of a count. Does not know any meter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.nvml import NoAnswer

SHORTEST_WINDOW_S = 0.1
"""Less than this between two reads tells nothing new: NVML's counters are renewed about as often.

docs.nvidia.com/deploy/nvml-api, group GPM: "The interval between two nvmlGpmSampleGet() calls should be greater than
100ms due to the internal sample refresh rate."
"""
FIRST_LOOK = "first look"
NOT_SUPPORTED = "not supported"

Figure: TypeAlias = float | int
Meter: TypeAlias = Callable[[], Figure]


class Missing(Exception):
    """A meter has no figure; `reason` says why in a word or two."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Figures:
    """What meters gave, by name; one that gave none is None, and its reason stands in `reasons`."""

    values: Mapping[str, Figure | None] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Figures) -> Figures:
        return Figures({**self.values, **other.values}, {**self.reasons, **other.reasons})


def none_of(names: Iterable[str], reason: str) -> Figures:
    """No figure of any of these meters, for one reason."""
    listed = tuple(names)
    return Figures(dict.fromkeys(listed), dict.fromkeys(listed, reason))


def read_each(meters: Mapping[str, Meter]) -> Figures:
    """Reads every meter on its own."""
    values: dict[str, Figure | None] = {}
    reasons: dict[str, str] = {}
    for name, meter in meters.items():
        try:
            value = meter()
            if not math.isfinite(value):
                raise Missing("no data")
            values[name] = value
        except (Missing, NoAnswer) as lacking:
            values[name], reasons[name] = None, lacking.reason
    return Figures(values, reasons)


def first_of(*ways: Meter) -> Meter:
    """A meter that is read in the first way that gives a figure; the reason is the most telling of all ways.

    A way that only lacks an earlier sample ends it: the next look has its figure, and this one no other kind of figure.
    """

    def read() -> Figure:
        reasons: list[str] = []
        for way in ways:
            try:
                return way()
            except (Missing, NoAnswer) as lacking:
                reasons.append(lacking.reason)
                if lacking.reason == FIRST_LOOK:
                    break
        raise Missing(next((reason for reason in reasons if reason != NOT_SUPPORTED), NOT_SUPPORTED))

    return read


class Paced:
    """A look that is not taken again within a moment: the last one's figures, the very same object, stand for it."""

    def __init__(self, look: Callable[[], Figures], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._last: tuple[float, Figures] | None = None

    def read(self) -> Figures:
        """The figures of now, or of less than SHORTEST_WINDOW_S ago."""
        now_s = self._clock()
        if self._last is None or now_s - self._last[0] >= SHORTEST_WINDOW_S:
            self._last = now_s, self._look()
        return self._last[1]


class Rate:
    """The mean rate of a count between two reads of it."""

    def __init__(self) -> None:
        self._last: tuple[Figure, float] | None = None

    def per_s(self, count: Figure, now_s: float) -> float:
        """Counted since the last call, in a second; Missing at the first call, and where the count began anew."""
        last, self._last = self._last, (count, now_s)
        if last is None or now_s <= last[1]:
            raise Missing(FIRST_LOOK)
        if count < last[0]:
            raise Missing("counter reset")
        return (count - last[0]) / (now_s - last[1])
