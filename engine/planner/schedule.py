"""Pipeline schedules as numbers: stages a rank, microbatches they take, layers they hold.

Knows the rules that `torch.distributed.pipelining` 2.11 to 2.13 enforces when it builds a
schedule (read in its source). Does not know time (bubbles come with the model of time).
"""

from __future__ import annotations

from engine.config import Parallelism, ScheduleName

SINGLE_STAGE: frozenset[ScheduleName] = frozenset({"GPipe", "1F1B"})
V_SHAPED: frozenset[ScheduleName] = frozenset({"ZBVZeroBubble", "DualPipeV"})
ZERO_BUBBLE: frozenset[ScheduleName] = frozenset({"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})


def stages_of_a_rank(parallelism: Parallelism, n_layers: int) -> int | None:
    """Stages that each pipeline rank holds; None where layers_per_stage does not give each rank equally many."""
    pp = parallelism.pipeline_parallel_degree
    if pp == 1:
        return 1  # the pipeline's other keys are without effect
    if parallelism.pipeline_parallel_layers_per_stage is None:
        return 1 if parallelism.pipeline_parallel_schedule in SINGLE_STAGE else 2
    stages = -(-n_layers // parallelism.pipeline_parallel_layers_per_stage)
    return stages // pp if stages % pp == 0 else None


def takes_stages(schedule: ScheduleName, stages_a_rank: int) -> bool:
    """Whether torch builds `schedule` with this many stages on a rank."""
    if schedule in SINGLE_STAGE:
        return stages_a_rank == 1
    return stages_a_rank == 2 if schedule in V_SHAPED else True


def takes_microbatches(schedule: ScheduleName, *, microbatches: int, pp: int, stages: int) -> bool:
    """Whether torch builds `schedule` for this many microbatches on `pp` ranks with `stages` stages in all.

    1F1B and DualPipeV need one microbatch a stage; the interleaved schedules run in
    max(1, microbatches // pp) rounds of equal size; GPipe, LoopedBFS and ZBV take any number.
    """
    match schedule:
        case "1F1B" | "DualPipeV":
            return microbatches >= stages
        case "Interleaved1F1B" | "InterleavedZeroBubble":
            return microbatches % max(1, microbatches // pp) == 0
        case _:
            return microbatches >= 1


def stage_indices(schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int) -> tuple[int, ...]:
    """The stages that one rank holds: every pp-th, or for V-shaped schedules one going down and one coming back."""
    if schedule in V_SHAPED and pp > 1:
        assert stages_a_rank == 2, "rule P113 lets V-shaped schedules through only with two stages a rank"
        return pp_rank, 2 * pp - 1 - pp_rank
    return tuple(pp_rank + pp * turn for turn in range(stages_a_rank))


def split_layers(n_layers: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Layer indices of each stage: contiguous, every layer once, sizes at most one apart.

    What does not divide goes to the middle stages, because the first also holds the embedding
    and the last the output head.
    """
    size, extra = divmod(n_layers, stages)
    from_middle = sorted(range(stages), key=lambda stage: (abs(2 * stage - (stages - 1)), -stage))
    larger = set(from_middle[:extra])
    pieces: list[tuple[int, ...]] = []
    start = 0
    for stage in range(stages):
        end = start + size + (stage in larger)
        pieces.append(tuple(range(start, end)))
        start = end
    return tuple(pieces)
