"""torch's pipeline schedules without stages: their constructors read only numbers, so that orders are cheap to have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining.schedules import get_schedule_class

from engine.config import ScheduleName
from engine.planner.schedule import SINGLE_STAGE, stage_indices


def schedule_of_torch(schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int) -> Any:
    """The schedule that torch builds on one rank; ValueError where it refuses the numbers."""
    count = pp * stages_a_rank
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=count,
            group_size=pp,
            group_rank=pp_rank,
            group=None,
            device=torch.device("cpu"),
            is_first=index == 0,
            is_last=index == count - 1,
            has_backward=True,
            submod=nn.Identity(),
            stage_index_to_group_rank={},
        )
        for index in stage_indices(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank)
    ]
    held: Any = stages[0] if schedule in SINGLE_STAGE else stages
    return get_schedule_class(schedule)(held, microbatches, loss_fn=lambda output, _: output)
