"""What compute hides of the collectives on weights."""

from __future__ import annotations

import pytest

from engine.planner.hiding import (
    Exposed,
    Pass,
    gathers_backward,
    gathers_forward,
    once_a_step,
    sums_at_the_end,
    sums_beside_backward,
)
from engine.planner.messages import WeightMessages

WEIGHTS = WeightMessages(gather=(1.0, 0.5, 0.5), scatter=(2.0, 1.0, 1.0), copies=(0.25, 0.125, 0.125))
LONG, SHORT = Pass(forward_s=5.0, backward_s=10.0), Pass(forward_s=0.75, backward_s=2.0)


def test_long_blocks_hide_every_gather_but_the_first() -> None:
    found = gathers_forward(WEIGHTS, LONG, blocks=4)
    assert (found.shards_s, found.shards_open_s) == (5.0, 1.5)


def test_short_blocks_leave_of_each_gather_what_they_do_not_cover() -> None:
    assert gathers_forward(WEIGHTS, SHORT, blocks=4).shards_open_s == pytest.approx(1.5 + 3 * 0.25)


def test_long_blocks_hide_every_sum_but_the_last_and_the_embedding() -> None:
    found = sums_beside_backward(WEIGHTS, LONG, blocks=4, gathers_again=True, sums_copies=False)
    assert (found.shards_s, found.shards_open_s) == (4 * 3.0 + 2.0, 3.0)
    assert (found.replicas_s, found.replicas_open_s) == (0.0, 0.0)


def test_sums_and_gathers_of_backward_share_the_links() -> None:
    found = sums_beside_backward(WEIGHTS, SHORT, blocks=4, gathers_again=True, sums_copies=False)
    assert found.shards_open_s == pytest.approx(3 * (1 + 2 - 2) + 3.0)


def test_sums_over_copies_come_behind_those_over_shards() -> None:
    found = sums_beside_backward(WEIGHTS, SHORT, blocks=4, gathers_again=False, sums_copies=True)
    assert found.shards_open_s + found.replicas_open_s == pytest.approx(3 * 0.25 + 3.0 + 0.375)
    assert found.replicas_s == pytest.approx(1.25)


@pytest.mark.parametrize("backward_s", [0.0, 0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("blocks", [0, 1, 2, 80])
def test_no_axis_exposes_more_than_it_sends(backward_s: float, blocks: int) -> None:
    block = Pass(forward_s=1.0, backward_s=backward_s)
    found = sums_beside_backward(WEIGHTS, block, blocks=blocks, gathers_again=True, sums_copies=True)
    assert found.shards_open_s <= found.shards_s * (1 + 1e-12)
    assert found.replicas_open_s <= found.replicas_s * (1 + 1e-12)


def test_a_pipeline_hides_no_sum() -> None:
    found = sums_at_the_end(WEIGHTS, blocks=4, sums_copies=True)
    assert (found.shards_open_s, found.replicas_open_s) == (found.shards_s, found.replicas_s) == (10.0, 1.25)


def test_backward_hides_gathers_that_are_shorter() -> None:
    assert gathers_backward(WEIGHTS, LONG, blocks=4).shards_open_s == 0.0


def test_zero_1_sends_everything_once_and_in_the_open() -> None:
    found = once_a_step(WEIGHTS, blocks=4)
    assert (found.shards_open_s, found.replicas_open_s) == (found.shards_s, found.replicas_s) == (15.0, 1.25)


def test_steps_add_up() -> None:
    one = Exposed(shards_s=1.0, shards_open_s=0.5, replicas_s=2.0, replicas_open_s=0.25)
    assert one + one == one.times(2)
