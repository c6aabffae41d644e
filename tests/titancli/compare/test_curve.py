"""The curve of a run: which steps count, what lies before each, and what stands between two of them."""

from __future__ import annotations

from typing import Any

import pytest

from titancli.compare.curve import curve_of, loss_at, smoothed


def started(resumed_from: int | None = None, world_size: int = 2) -> dict[str, Any]:
    return {"kind": "run_started", "world_size": world_size, "resumed_from": resumed_from}


def step(number: int, loss: float | None = 1.0, *, rate: float | None = None, **more: Any) -> dict[str, Any]:
    figures = {"tokens": 90, "slots": 100, "step_s": 2.0, "tokens_per_s_per_gpu": rate, "mfu_pct": None}
    return {"kind": "step", "step": number, "loss": loss, **figures, **more}


def test_tokens_and_seconds_are_those_of_all_steps_in_between() -> None:
    curve = curve_of([started(), step(1), step(5), step(10, step_s=3.0)])
    assert (curve.steps, curve.tokens, curve.seconds) == ((1, 5, 10), (90, 450, 900), (2, 10, 25))


def test_tokens_of_a_window_follow_from_its_rate_where_its_last_step_was_shorter() -> None:
    curve = curve_of([started(), step(1), step(3, rate=25.0, tokens=10)])
    assert curve.tokens == (90, 90 + 2 * 25 * 2.0 * 2)


def test_steps_that_are_done_anew_count_once_and_the_later_time() -> None:
    events = [started(), step(1, 9.0), step(5, 8.0), step(10, 7.0), started(5), step(6, 6.0), step(10, 5.0)]
    curve = curve_of(events)
    assert (curve.steps, curve.losses) == ((1, 5, 6, 10), (9.0, 8.0, 6.0, 5.0))
    assert (curve.redone, curve.attempts) == (5, 2)
    assert curve.seconds == (2, 10, 12, 20)


def test_saved_steps_that_were_reported_with_lost_ones_keep_their_time() -> None:
    events = [started(), step(1), step(10, step_s=4.0), step(20, step_s=4.0), started(15), step(16), step(20)]
    curve = curve_of(events)
    assert curve.steps == (1, 10, 16, 20)
    assert curve.seconds == (2, 2 + 36, 2 + 36 + 5 * 4 + 2, 2 + 36 + 5 * 4 + 2 + 4 * 2)


def test_saved_steps_that_nobody_reported_take_what_those_before_took() -> None:
    curve = curve_of([started(), step(1), step(10, step_s=4.0), started(12), step(13)])
    assert curve.steps == (1, 10, 13)
    assert curve.seconds == (2, 38, 38 + 2 * 4 + 2)
    assert curve.tokens == (90, 900, 13 * 90)


def test_run_that_starts_again_without_a_checkpoint_has_one_curve() -> None:
    curve = curve_of([started(), step(1), step(2), started(), step(1, 5.0)])
    assert (curve.steps, curve.losses, curve.redone) == ((1,), (5.0,), 2)


def test_tokens_before_the_first_event_count_and_their_seconds_do_not() -> None:
    curve = curve_of([started(100), step(101)])
    assert (curve.tokens, curve.seconds) == ((9090,), (2,))


def test_another_world_after_a_resumption_counts_its_own_tokens() -> None:
    events = [started(world_size=2), step(1), step(2, rate=45.0), started(2, world_size=4), step(3), step(4, rate=22.5)]
    assert curve_of(events).tokens == (90, 270, 360, 540)


@pytest.mark.parametrize("bad", [{"step": None}, {"step": "7"}, {"step": 0}, {"step": 1e30}])
def test_step_that_is_no_step_is_passed_over(bad: dict[str, Any]) -> None:
    assert curve_of([started(), step(1), step(2) | bad]).steps == (1,)


def test_axis_of_which_something_is_not_known_has_no_points() -> None:
    curve = curve_of([started(), step(1), step(2, step_s=None)])
    assert (curve.points("time"), curve.points("steps")) == ((), ((1, 1.0), (2, 1.0)))


def test_loss_that_is_not_there_is_no_point() -> None:
    curve = curve_of([started(), step(1, 3.0), step(2, None)])
    assert (curve.losses, curve.points("steps"), curve.last_loss) == ((3.0, None), ((1, 3.0),), None)


def test_speed_is_the_median_without_the_first_report_of_each_attempt() -> None:
    rates = [started(), step(1), step(2, rate=10.0), step(3, rate=30.0), started(3), step(4, rate=99.0)]
    assert curve_of([*rates, step(5, rate=20.0)]).median("tokens_per_s_per_gpu") == 20.0
    assert curve_of(rates[:2]).median("tokens_per_s_per_gpu") is None


def test_loss_between_two_logged_steps_lies_on_the_line() -> None:
    points = ((10.0, 4.0), (20.0, 2.0))
    assert [loss_at(points, place) for place in (10, 15, 20)] == [4.0, 3.0, 2.0]
    assert [loss_at(points, place) for place in (9, 21)] == [None, None]


def test_loss_at_a_place_that_is_the_end_but_for_rounding_is_the_last() -> None:
    assert loss_at(((10.0, 4.0), (20.0, 2.0)), 20.0 + 1e-10) == 2.0


def test_mean_of_what_came_before_is_not_drawn_to_zero() -> None:
    level = smoothed(((1, 4.0), (2, 4.0), (3, 4.0)), 0.9)
    assert [loss for _, loss in level] == pytest.approx([4.0, 4.0, 4.0])
    (_, first), (_, second) = smoothed(((1, 4.0), (2, 1.0)), 0.5)
    assert (first, second) == (4.0, pytest.approx(2.0))


def test_without_weight_nothing_is_smoothed() -> None:
    assert smoothed(((1, 4.0), (2, 1.0)), 0.0) == ((1, 4.0), (2, 1.0))
