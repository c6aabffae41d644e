"""FSDP's groups and buffers as numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.planner.sharding import Groups, Sharding, groups_of
from engine.shapes import FLAVORS, part_parameters

GROUPS = Groups(block=1000, blocks=4, embedding=500, head=600)
FOUR = Sharding(
    fsdp=4,
    gathered_width_bytes=2,
    gathered_block_width_bytes=1,
    gradient_width_bytes=2,
    reduce_width_bytes=4,
    summed_width_bytes=4,
    keeps_gathered=False,
    sums_late=False,
    accumulates=False,
)
ONE = replace(FOUR, fsdp=1, gathered_block_width_bytes=2)


@pytest.mark.parametrize(("flavor", "tied"), [("8B", False), ("1B", True)])
def test_every_weight_is_in_one_group_and_a_tied_one_in_the_head_s(flavor: str, tied: bool) -> None:
    shape = FLAVORS["llama3"][flavor]
    weights = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    groups = groups_of(weights, layers=shape.n_layers, tp=1)
    assert groups.total == sum(weight.numel for weight in weights.values())
    assert (groups.embedding == 0) == tied
    assert groups.head == shape.vocab_size * shape.dim + shape.dim


def test_weights_that_stay_are_all_of_them() -> None:
    assert FOUR.whole_bytes(GROUPS, blocks=1, ends=GROUPS.head) == 1000 + 2 * 600
    assert replace(FOUR, keeps_gathered=True).whole_bytes(GROUPS, blocks=1, ends=0) == 4000 + 2 * 1100


@pytest.mark.parametrize("adds_up", [False, True])
def test_without_fsdp_nothing_is_gathered_or_copied(adds_up: bool) -> None:
    whole = replace(
        ONE,
        gathered_width_bytes=0,
        gathered_block_width_bytes=0,
        reduce_width_bytes=0,
        summed_width_bytes=4 if adds_up else 2,
        whole=True,
        adds_up=adds_up,
        accumulates=adds_up,
    )
    assert whole.whole_bytes(GROUPS, blocks=4, ends=1100) == whole.gathering_bytes(GROUPS) == 0
    assert whole.scattered_bytes(1000) == whole.again_bytes(1000) == whole.copied_bytes(1000) == 0
    # A gradient is its own sum, or stands beside it.
    assert (whole.summed_bytes(1000), whole.settled_bytes(1000)) == ((4000, 2000) if adds_up else (2000, 0))


def test_one_rank_gathers_nothing_but_copies_what_it_multiplies_and_sums() -> None:
    assert (ONE.buffer_bytes(600), FOUR.buffer_bytes(600)) == (0, 1200)
    assert ONE.whole_bytes(GROUPS, blocks=1, ends=0) == 2000
    assert ONE.scattering_bytes(1000) == FOUR.scattering_bytes(1000) == 4000


def test_only_copies_that_are_not_sharded_divide_into_a_new_tensor() -> None:
    copies = [replace(given, replicates=True).copied_bytes(1000) for given in (ONE, FOUR)]
    assert copies == [4000, 0]
    assert ONE.copied_bytes(1000) == 0


def test_a_rank_keeps_its_share_of_sums_rounded_up() -> None:
    assert FOUR.summed_bytes(1001) == 251 * 4
