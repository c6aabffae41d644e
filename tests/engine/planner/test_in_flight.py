"""Microbatches in flight, counted in the order of operations that torch itself makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining.schedules import get_schedule_class

from engine.config import ScheduleName
from engine.planner.in_flight import in_flight
from engine.planner.schedule import stage_indices

MULTI: tuple[ScheduleName, ...] = (
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
    "LoopedBFS",
)
FREES = ("FULL_BACKWARD", "BACKWARD_WEIGHT")


def order_of(schedule: ScheduleName, *, pp: int, stages_a_rank: int, microbatches: int) -> dict[int, list[Any]]:
    """What torch lets each rank do; its constructor reads only numbers from the stages."""
    indices = stage_indices(schedule, pp_rank=0, pp=pp, stages_a_rank=stages_a_rank)
    count = pp * stages_a_rank
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=count,
            group_size=pp,
            group_rank=0,
            is_first=index == 0,
            is_last=index == count - 1,
            has_backward=True,
            device=torch.device("cpu"),
            group=None,
            submod=None,
            stage_index_to_group_rank={},
        )
        for index in indices
    ]
    made = get_schedule_class(schedule)(stages, microbatches, loss_fn=None)
    return dict(made.pipeline_order)


def most_held(actions: list[Any]) -> dict[int, int]:
    """Microbatches of each stage at the first moment at which the rank holds most in all."""
    held: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in filter(None, actions):
        for part in action.sub_actions or [action]:
            kind = part.computation_type.name
            held[part.stage_index] = held.get(part.stage_index, 0) + (kind == "FORWARD") - (kind in FREES)
            if sum(held.values()) > sum(most.values()):
                most = dict(held)
    return most


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", MULTI)
def test_held_microbatches_are_those_of_torch(schedule: ScheduleName, pp: int, rounds: int) -> None:
    microbatches = 2 * pp * rounds if schedule == "DualPipeV" else pp * rounds
    order = order_of(schedule, pp=pp, stages_a_rank=2, microbatches=microbatches)
    for rank in range(pp):
        indices = stage_indices(schedule, pp_rank=rank, pp=pp, stages_a_rank=2)
        found = in_flight(schedule, pp_rank=rank, pp=pp, stages_a_rank=2, microbatches=microbatches)
        assert dict(zip(indices, found, strict=True)) == most_held(order[rank])


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "InterleavedZeroBubble"])
@pytest.mark.parametrize("microbatches", [2, 4, 6, 8, 12])
def test_three_stages_a_rank_take_turns(schedule: ScheduleName, microbatches: int) -> None:
    order = order_of(schedule, pp=4, stages_a_rank=3, microbatches=microbatches)
    for rank in range(4):
        found = in_flight(schedule, pp_rank=rank, pp=4, stages_a_rank=3, microbatches=microbatches)
        assert sum(found) == sum(most_held(order[rank]).values())


@pytest.mark.parametrize(
    ("schedule", "microbatches", "held"),
    [("GPipe", 6, [6, 6, 6, 6]), ("1F1B", 6, [4, 3, 2, 1]), ("1F1B", 2, [2, 2, 2, 1])],
)
def test_1f1b_holds_what_is_on_its_way_back_and_gpipe_all(
    schedule: ScheduleName, microbatches: int, held: list[int]
) -> None:
    found = [
        in_flight(schedule, pp_rank=rank, pp=4, stages_a_rank=1, microbatches=microbatches)[0] for rank in range(4)
    ]
    assert found == held
