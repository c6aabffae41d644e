"""The shortest step that is as full as the whole one."""

from __future__ import annotations

from typing import get_args

import pytest
from synthetic import tiny

from engine.config import ScheduleName
from engine.dry.shorter import shorter
from engine.planner.in_flight import in_flight
from engine.planner.plan import plan
from engine.planner.schedule import takes_microbatches


@pytest.mark.parametrize("schedule", get_args(ScheduleName))
@pytest.mark.parametrize("pp_rank", range(4))
def test_every_schedule_holds_as_many_microbatches_as_before(schedule: ScheduleName, pp_rank: int) -> None:
    config = tiny(
        4,
        parallelism__pipeline_parallel_degree=4,
        parallelism__pipeline_parallel_schedule=schedule,
        model__shape__n_layers=8,
        training__local_batch_size=64,
        training__global_batch_size=-1,
    )
    whole = plan(config)
    short = plan(shorter(config, whole, pp_rank))
    stages = len(whole.stages[pp_rank].parts)

    def held(microbatches: int) -> list[int]:
        return in_flight(schedule, pp_rank=pp_rank, pp=4, stages_a_rank=stages, microbatches=microbatches)

    assert held(short.microbatches) == held(whole.microbatches)
    assert takes_microbatches(schedule, microbatches=short.microbatches, pp=4, stages=whole.stage_count)
    assert short.microbatches == 64 if schedule in ("GPipe", "LoopedBFS") else short.microbatches <= 20


def test_two_accumulation_steps_stand_for_all() -> None:
    config = tiny(2, training__local_batch_size=2, training__global_batch_size=32)
    whole = plan(config)
    assert (whole.gradient_accumulation_steps, whole.local_batch_size) == (8, 2)
    short = plan(shorter(config, whole, 0))
    assert (short.gradient_accumulation_steps, short.local_batch_size) == (2, 2)


def test_compiler_and_kernels_of_gpus_are_left_out() -> None:
    config = tiny(compile__enable=True, quantize__dense__mx__enable=True)
    short = shorter(config, plan(config), 0)
    assert not short.compile.enable
    assert short.quantize.dense.mx.emulate
