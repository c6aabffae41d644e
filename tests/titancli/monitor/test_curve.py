"""Losses of a run in few points."""

from __future__ import annotations

from itertools import pairwise

import pytest

from titancli.monitor.curve import MOST_POINTS, Curve


def of(*steps: int) -> Curve:
    curve = Curve()
    for step in steps:
        curve = curve.with_point(step, float(step))
    return curve


@pytest.mark.parametrize("last", [1, 119, 120, 1000, 100_000])
@pytest.mark.parametrize("apart", [1, 10])
def test_curve_covers_the_whole_run_evenly_in_few_points(last: int, apart: int) -> None:
    curve = of(*range(apart, apart * last + 1, apart))
    assert len(curve.steps) <= MOST_POINTS
    assert len(curve.steps) >= min(last, MOST_POINTS // 2)
    assert curve.steps[-1] == apart * last
    assert max((after - before for before, after in pairwise(curve.steps)), default=0) < 2 * max(curve.every, apart)


def test_every_point_is_one_that_was_told() -> None:
    curve = of(*range(1, 5000, 7))
    assert list(curve.losses) == [float(step) for step in curve.steps]
    assert all((step - 1) % 7 == 0 for step in curve.steps)


def test_what_is_done_anew_is_cut_off() -> None:
    assert of(1, 2, 3, 4).up_to(2).steps == (1, 2)
    assert of(1, 2, 3, 4).up_to(0) == Curve()
    assert of(1, 2).up_to(9) == of(1, 2)
    assert of(*range(1, 1000)).up_to(500).steps[-1] <= 500
