"""Schedules as numbers, held against the ones that torch builds."""

from __future__ import annotations

from math import floor
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Model, Parallelism, ScheduleName
from engine.planner.schedule import (
    SINGLE_STAGE,
    V_SHAPED,
    ZERO_BUBBLE,
    layers_of_stages,
    most_stages,
    split_layers,
    stage_indices,
    stages_of_a_rank,
    takes_microbatches,
)
from engine.planner.stack import MEGATRON, TITAN, TORCHTITAN
from engine.shapes import shape_of
from tests.world.torch_schedules import schedule_of_torch

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def torch_builds(schedule: ScheduleName, *, microbatches: int, pp: int, stages_a_rank: int) -> bool:
    """Whether torch builds the schedule on every rank, communication of all stages laid out."""
    for rank in range(pp):
        try:
            built = schedule_of_torch(
                schedule, pp_rank=rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches
            )
        except ValueError:
            return False
        if schedule not in SINGLE_STAGE:
            indices = stage_indices(schedule, pp_rank=rank, pp=pp, stages_a_rank=stages_a_rank)
            assert {built.stage_index_to_group_rank[index] for index in indices} == {rank}
            built._prepare_schedule_with_comms(built.pipeline_order)  # raises where ranks would wait for each other
    return True


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_c06_microbatches_are_taken_exactly_where_torch_builds_the_schedule(schedule: ScheduleName, pp: int) -> None:
    stages_a_rank = 1 if schedule in SINGLE_STAGE else 2
    taken = [
        count
        for count in range(1, 17)
        if takes_microbatches(schedule, microbatches=count, pp=pp, stages=pp * stages_a_rank)
    ]
    built = [
        count
        for count in range(1, 17)
        if torch_builds(schedule, microbatches=count, pp=pp, stages_a_rank=stages_a_rank)
    ]
    assert taken == built


def test_c06_interleaved_takes_what_the_case_lists() -> None:
    taken = [m for m in range(1, 17) if takes_microbatches("Interleaved1F1B", microbatches=m, pp=4, stages=8)]
    assert taken == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16]


def test_zero_bubble_and_v_shaped_schedules_hold_several_stages() -> None:
    assert V_SHAPED < ZERO_BUBBLE < set(SCHEDULES) - SINGLE_STAGE


@pytest.mark.parametrize(
    ("schedule", "indices"),
    [
        ("1F1B", [(0,), (1,), (2,)]),
        ("Interleaved1F1B", [(0, 3), (1, 4), (2, 5)]),
        ("ZBVZeroBubble", [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_ranks_hold_stages_in_a_loop_or_a_v(schedule: ScheduleName, indices: list[tuple[int, ...]]) -> None:
    each = len(indices[0])
    assert [stage_indices(schedule, pp_rank=rank, pp=3, stages_a_rank=each) for rank in range(3)] == indices


def parallelism(pp: int, schedule: ScheduleName = "1F1B", layers_per_stage: int | None = None) -> Parallelism:
    return Parallelism(
        pipeline_parallel_degree=pp,
        pipeline_parallel_schedule=schedule,
        pipeline_parallel_layers_per_stage=layers_per_stage,
    )


@pytest.mark.parametrize(
    ("settings", "n_layers", "stages"),
    [
        (parallelism(4), 8, 1),
        (parallelism(4, "Interleaved1F1B"), 8, 2),
        (parallelism(4, "GPipe", 2), 8, 1),
        (parallelism(4, "LoopedBFS", 1), 8, 2),
        (parallelism(4, "1F1B", 3), 8, None),
        (parallelism(16, "Interleaved1F1B", 2), 80, None),
        (parallelism(1, "ZBVZeroBubble", 3), 8, 1),
    ],
)
def test_stages_of_a_rank(settings: Parallelism, n_layers: int, stages: int | None) -> None:
    assert stages_of_a_rank(settings, n_layers) == stages


def test_other_engines_take_as_many_stages_as_ranks_share_evenly() -> None:
    settings = parallelism(8, "Interleaved1F1B", 2)
    found = {stack.name: stages_of_a_rank(settings, 126, stack=stack) for stack in (TITAN, TORCHTITAN, MEGATRON)}
    assert found == {"titan": None, "torchtitan": 8, "megatron": 8}


def test_megatron_lets_embedding_and_head_be_stages_of_their_own() -> None:
    settings = parallelism(16, "Interleaved1F1B", 1)
    assert most_stages(126, MEGATRON) == 128 == 16 * (stages_of_a_rank(settings, 126, stack=MEGATRON) or 0)
    pieces = layers_of_stages(shape_of(Model(flavor="405B")), settings, 128, stack=MEGATRON)
    assert [len(piece) for piece in pieces] == [0, *[1] * 126, 0]
    assert most_stages(126) == 126


@given(n_layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_c04_a_split_holds_every_layer_once_in_order_and_is_even(n_layers: int, stages: int) -> None:
    pieces = split_layers(n_layers, tuple(range(stages)))
    assert len(pieces) == stages
    assert [layer for piece in pieces for layer in piece] == list(range(n_layers))
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


@given(pp=st.integers(1, 16), each=st.integers(1, 4), more=st.integers(0, 100), eighths=st.integers(0, 160))
def test_no_other_split_makes_the_slowest_rank_faster(pp: int, each: int, more: int, eighths: int) -> None:
    n_layers, head = pp * each + more, eighths / 8
    counts = [len(piece) for piece in split_layers(n_layers, tuple(range(pp)) * each, head_blocks=head)]
    assert (sum(counts), min(counts) >= 1) == (n_layers, True)

    def is_enough(work: float) -> bool:
        return work >= each + head and (pp - 1) * floor(work) + floor(work - head) >= n_layers

    works = [sum(counts[rank::pp]) + (head if rank == pp - 1 else 0) for rank in range(pp)]
    candidates = [count + more for count in range(1, n_layers + 1) for more in (0, head)]
    assert max(works) == min(filter(is_enough, candidates))


def test_layers_that_do_not_divide_go_to_the_middle() -> None:
    assert [len(piece) for piece in split_layers(30, tuple(range(4)))] == [7, 8, 8, 7]
    assert [len(piece) for piece in split_layers(126, tuple(range(16)))] == [7, *[8] * 14, 7]


@pytest.mark.parametrize(
    ("flavor", "settings", "counts"),
    [
        ("8B", parallelism(4), [8, 9, 9, 6]),
        ("70B", parallelism(8), [10, 10, 10, 10, 11, 10, 10, 9]),
        ("405B", parallelism(16), [7, *[8] * 14, 7]),
        ("405B", parallelism(8, "Interleaved1F1B"), [7, *[8] * 14, 7]),
        # Ranks work for 17.4 and 17 blocks; 8 layers each would make it 18.4 and 16.
        ("8B", parallelism(2, "ZBVZeroBubble"), [9, 8, 9, 6]),
    ],
)
def test_the_rank_with_the_head_has_fewer_layers_the_more_the_head_weighs(
    flavor: str, settings: Parallelism, counts: list[int]
) -> None:
    pieces = layers_of_stages(shape_of(Model(flavor=flavor)), settings, len(counts))
    assert [len(piece) for piece in pieces] == counts


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_head_as_heavy_as_all_blocks_leaves_its_rank_one_layer_a_stage(schedule: ScheduleName) -> None:
    each = 1 if schedule in SINGLE_STAGE else 2
    shape = shape_of(Model.model_validate({"shape": {"vocab_size": 1_000_000}}))
    pieces = layers_of_stages(shape, parallelism(2, schedule), 2 * each)
    held = [stage_indices(schedule, pp_rank=rank, pp=2, stages_a_rank=each) for rank in range(2)]
    mine = next(stages for stages in held if 2 * each - 1 in stages)
    assert [len(pieces[stage]) for stage in mine] == [1] * each


@pytest.mark.parametrize(("given", "stages"), [(8, 4), (4, 8), (5, 7), (1, 32)])
def test_no_stage_holds_more_layers_than_are_given(given: int, stages: int) -> None:
    pieces = layers_of_stages(shape_of(Model(flavor="8B")), parallelism(stages, layers_per_stage=given), stages)
    assert [layer for piece in pieces for layer in piece] == list(range(32))
    assert max(len(piece) for piece in pieces) == given


def test_c04_thirty_layers_on_four_stages() -> None:
    shape = shape_of(Model.model_validate({"shape": {"n_layers": 30}}))
    assert sorted(len(piece) for piece in layers_of_stages(shape, parallelism(4), 4)) == [7, 7, 8, 8]
