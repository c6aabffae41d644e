"""Sets of moments on one clock, as spans that neither touch nor overlap, in order.

Knows union, difference and intersection. Does not know what happens in a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Begin and end in nanoseconds; what is no longer than nothing is no span."""
Spans: TypeAlias = Sequence[Span]

NS = 1e-9
"""Seconds in a nanosecond."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The moments that lie in any of `spans`, which may come in any order."""
    whole: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if whole and begin <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((begin, end))
    return whole


def common(one: Spans, other: Spans) -> list[Span]:
    """The moments that lie in both; each is a union."""
    found: list[Span] = []
    mine, theirs = 0, 0
    while mine < len(one) and theirs < len(other):
        begin, end = max(one[mine][0], other[theirs][0]), min(one[mine][1], other[theirs][1])
        if begin < end:
            found.append((begin, end))
        if one[mine][1] < other[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return found


def without(whole: Spans, taken: Spans) -> list[Span]:
    """The moments of `whole` that are not in `taken`; each is a union."""
    left: list[Span] = []
    place = 0
    for begin, end in whole:
        while place < len(taken) and taken[place][1] <= begin:
            place += 1
        after = place
        while after < len(taken) and taken[after][0] < end:
            if taken[after][0] > begin:
                left.append((begin, taken[after][0]))
            begin = max(begin, taken[after][1])
            after += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(spans: Spans) -> int:
    """Nanoseconds of a union."""
    return sum(end - begin for begin, end in spans)
