"""The shortest step that holds as much as a whole one.

Knows that a rank is at its fullest when it has begun as many microbatches as its schedule ever lets it
hold and every stage has gradients, and that further accumulation steps repeat the second one. Does not
know bytes, nor torch.
"""

from __future__ import annotations

from engine.config import Config
from engine.keys import with_values
from engine.planner.in_flight import in_flight
from engine.planner.plan import Plan
from engine.planner.schedule import takes_microbatches

# The first leaves gradients behind, which the second has beside its activations.
_ACCUMULATION_STEPS = 2


def shorter(config: Config, plan: Plan, pp_rank: int) -> Config:
    """The config with the smallest batch in which this pipeline rank holds all that it ever holds at once.

    It runs without the compiler, which fake tensors would not get through, and with MXFP8 emulated,
    whose kernels are there on GPUs only.
    """
    microbatches = _microbatches(config, plan, pp_rank)
    local = microbatches * plan.microbatch_size
    accumulation = min(plan.gradient_accumulation_steps, _ACCUMULATION_STEPS)
    return with_values(
        config,
        {
            "training.local_batch_size": local,
            "training.global_batch_size": local * plan.mesh.data_ranks * accumulation,
            "compile.enable": False,
            "quantize.dense.mx.emulate": config.quantize.dense.mx.enable,
        },
    )


def _microbatches(config: Config, plan: Plan, pp_rank: int) -> int:
    if plan.mesh.pp == 1:
        return plan.microbatches
    schedule = config.parallelism.pipeline_parallel_schedule

    def held(microbatches: int) -> list[int]:
        return in_flight(
            schedule,
            pp_rank=pp_rank,
            pp=plan.mesh.pp,
            stages_a_rank=len(plan.stages[pp_rank].parts),
            microbatches=microbatches,
        )

    whole = held(plan.microbatches)
    # Then one more backward of every stage while it is as full: gradients are there from the first on.
    more = 1 if len(plan.stages[pp_rank].parts) == 1 else plan.mesh.pp
    fullest = next(count for count in range(1, plan.microbatches + 1) if held(count) == whole)
    return next(
        count
        for count in range(min(fullest + more, plan.microbatches), plan.microbatches + 1)
        if takes_microbatches(schedule, microbatches=count, pp=plan.mesh.pp, stages=plan.stage_count)
        and held(count) == whole
    )
