"""Numbers that would be right, and how a person reads them: what a fix offers in the place of a wrong one."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

_LARGEST_TRIED = 1_000_000


def divisors(number: int) -> list[int]:
    """The whole numbers that divide `number`, in rising order.

    Above a million squared only those up to a million and their counterparts: enough to offer, and quick
    however large the number is.
    """
    small = [value for value in range(1, min(isqrt(number), _LARGEST_TRIED) + 1) if number % value == 0]
    return small + [number // value for value in reversed(small) if value * value != number]


def choice(values: Iterable[object]) -> str:
    """Values as a person reads them: `1, 2, 4 or 8`."""
    *most, last = [str(value) for value in values]
    return f"{', '.join(most)} or {last}" if most else last


def neighbours(value: int, step: int) -> list[int]:
    """The multiples of `step` just below and above `value`, without 0."""
    below = value // step * step
    return [near for near in (below, below + step) if near]


def largest(values: list[int], most: int) -> int:
    """The largest of `values` that is at most `most`, else the smallest."""
    return max((value for value in values if value <= most), default=min(values))


def near_divisors(number: int, value: int) -> list[int]:
    """The divisors of `number` nearest below and above `value`."""
    legal = divisors(number)
    below = [divisor for divisor in legal if divisor <= value]
    above = [divisor for divisor in legal if divisor > value]
    return below[-1:] + above[:1]
