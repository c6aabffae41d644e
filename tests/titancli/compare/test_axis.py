"""Numbers beside a drawing."""

from __future__ import annotations

import pytest

from titancli.compare.axis import along_scale, loss_scale, ticks_between


@pytest.mark.parametrize(
    ("high", "along", "texts", "label"),
    [
        (60, "steps", ("0", "20", "40", "60"), "steps"),
        (8, "steps", ("0", "5"), "steps"),
        (100_000, "steps", ("0", "50 k", "100 k"), "steps"),
        (2.5e9, "tokens", ("0", "1 B", "2 B"), "tokens"),
        (90.0, "time", ("0", "25", "50", "75"), "seconds of training"),
        (7200.0, "time", ("0", "50", "100"), "minutes of training"),
        (400_000.0, "time", ("0", "2", "4"), "days of training"),
    ],
)
def test_ticks_below_stand_at_round_numbers_of_a_unit(
    high: float, along: str, texts: tuple[str, ...], label: str
) -> None:
    scale = along_scale([((1.0, 1.0), (high, 1.0))], along, most_ticks=4)
    assert (scale.texts, scale.label) == (texts, label)


def test_losses_have_as_many_digits_as_their_ticks_need() -> None:
    scale, _ = loss_scale([((1, 2.0), (2, 3.0))], most_ticks=5)
    assert scale.texts == ("2.00", "2.25", "2.50", "2.75", "3.00")
    assert loss_scale([((1, 2.0), (2, 10.0))], most_ticks=5)[0].texts == ("2", "4", "6", "8", "10")


def test_first_losses_that_would_flatten_the_others_lie_above() -> None:
    points = tuple((step, 12.0 if step < 3 else 3.0 - step / 100) for step in range(1, 101))
    scale, is_cut = loss_scale([points], most_ticks=5)
    assert is_cut
    assert scale.high < 3.0


def test_loss_that_comes_up_late_is_never_cut() -> None:
    points = tuple((step, 3.0 if step < 99 else 50.0) for step in range(1, 101))
    assert loss_scale([points], most_ticks=5)[0].high == 50.0


@pytest.mark.parametrize("loss", [0.0, 2.5, -1.0])
def test_one_level_has_room_around_it(loss: float) -> None:
    scale, _ = loss_scale([((1, loss), (2, loss))], most_ticks=5)
    assert scale.low < loss < scale.high
    assert len(set(scale.texts)) == len(scale.texts)


@pytest.mark.parametrize("most", [2, 3, 5, 10])
def test_ticks_are_never_more_than_asked_for(most: int) -> None:
    for low, high in ((0, 1), (0.001, 0.0013), (2.37, 11.9), (0, 7e7)):
        assert 1 <= len(ticks_between(low, high, most)) <= most
