"""Sets of moments, beside sets of whole numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as draw

from engine.profile.spans import Span, common, length, union, without

SPANS = draw.lists(draw.tuples(draw.integers(0, 40), draw.integers(0, 40)), max_size=8)


def moments(spans: list[Span]) -> set[int]:
    """Each moment on its own."""
    return {moment for begin, end in spans for moment in range(begin, end)}


def is_in_order(spans: list[Span]) -> bool:
    """Whether spans neither touch nor overlap."""
    return all(begin < end for begin, end in spans) and all(one[1] < other[0] for one, other in pairwise(spans))


@given(SPANS)
def test_union_holds_every_moment_once(spans: list[Span]) -> None:
    whole = union(spans)
    assert (moments(whole), length(whole), is_in_order(whole)) == (moments(spans), len(moments(spans)), True)


@settings(max_examples=200)
@given(SPANS, SPANS)
def test_common_and_without_split_a_set(one: list[Span], other: list[Span]) -> None:
    mine, theirs = union(one), union(other)
    assert moments(common(mine, theirs)) == moments(mine) & moments(theirs)
    assert moments(without(mine, theirs)) == moments(mine) - moments(theirs)
