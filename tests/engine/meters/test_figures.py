"""Figures that may be missing, and the rates of counts."""

from __future__ import annotations

import pytest

from engine.meters.figures import FIRST_LOOK, Figures, Missing, Paced, Rate, first_of, none_of, read_each
from engine.nvml import NoAnswer


def lacking(reason: str) -> float:
    raise Missing(reason)


def refused(reason: str) -> float:
    raise NoAnswer(reason)


def test_a_meter_that_fails_takes_no_other_with_it() -> None:
    found = read_each({"a": lambda: refused("permission"), "b": lambda: 0.0, "c": lambda: float("nan")})
    assert found == Figures({"a": None, "b": 0.0, "c": None}, {"a": "permission", "c": "no data"})


def test_the_first_way_that_gives_a_figure_is_taken() -> None:
    assert first_of(lambda: refused("not supported"), lambda: 3.0, lambda: 4.0)() == 3.0


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (("not supported", "permission"), "permission"),
        (("permission", "not supported"), "permission"),
        (("not supported", "not supported"), "not supported"),
    ],
)
def test_the_most_telling_reason_is_told(reasons: tuple[str, str], told: str) -> None:
    with pytest.raises(Missing, match=f"^{told}$"):
        first_of(lambda: refused(reasons[0]), lambda: refused(reasons[1]))()


def test_a_way_that_needs_another_look_is_waited_for() -> None:
    with pytest.raises(Missing, match=FIRST_LOOK):
        first_of(lambda: lacking(FIRST_LOOK), lambda: 7.0)()


def test_a_rate_is_the_mean_between_two_reads() -> None:
    rate = Rate()
    with pytest.raises(Missing, match=FIRST_LOOK):
        rate.per_s(1000, 10.0)
    assert rate.per_s(4000, 12.0) == 1500.0


def test_a_count_that_began_anew_has_no_rate_once() -> None:
    rate = Rate()
    with pytest.raises(Missing):
        rate.per_s(1000, 10.0)
    with pytest.raises(Missing, match="counter reset"):
        rate.per_s(10, 11.0)
    assert rate.per_s(20, 12.0) == 10.0


def test_no_look_is_taken_twice_within_a_moment() -> None:
    times = iter((0.0, 0.05, 0.2))
    paced = Paced(lambda: none_of(("a",), "gone"), clock=lambda: next(times))
    first, again, later = paced.read(), paced.read(), paced.read()
    assert first is again
    assert later is not first
