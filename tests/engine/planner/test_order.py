"""A rank's order of work, held to the one that torch itself makes."""

from __future__ import annotations

from typing import get_args

import pytest

from engine.config import ScheduleName
from engine.planner.order import Action, rank_order
from engine.planner.schedule import SINGLE_STAGE, V_SHAPED, stage_indices, takes_microbatches
from tests.world.torch_schedules import schedule_of_torch

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def order_of_torch(schedule: ScheduleName, *, pp: int, stages_a_rank: int, microbatches: int) -> list[list[Action]]:
    """What torch lets each rank do."""
    found = []
    for rank in range(pp):
        indices = stage_indices(schedule, pp_rank=rank, pp=pp, stages_a_rank=stages_a_rank)
        made = schedule_of_torch(schedule, pp_rank=rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
        whole = made._get_pipeline_order() if schedule in SINGLE_STAGE else made.pipeline_order
        actions = [part for action in whole[rank] if action is not None for part in action.sub_actions or [action]]
        kinds = [(KINDS.get(action.computation_type.name), action.stage_index) for action in actions]
        found.append([Action(kind, indices.index(stage)) for kind, stage in kinds if kind is not None])
    return found


@pytest.mark.parametrize("microbatches", [2, 4, 6, 8, 12, 20])
@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("schedule", get_args(ScheduleName))
def test_every_schedule_is_in_the_order_of_torch(schedule: ScheduleName, pp: int, microbatches: int) -> None:
    counts = [1] if schedule in SINGLE_STAGE else [2] if schedule in V_SHAPED else [2, 3]
    for count in counts:
        if not takes_microbatches(schedule, microbatches=microbatches, pp=pp, stages=pp * count):
            continue
        expected = order_of_torch(schedule, pp=pp, stages_a_rank=count, microbatches=microbatches)
        found = [
            list(rank_order(schedule, pp_rank=rank, pp=pp, stages_a_rank=count, microbatches=microbatches))
            for rank in range(pp)
        ]
        assert found == expected
