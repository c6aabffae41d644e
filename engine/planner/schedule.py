"""Pipeline schedules as numbers: stages a rank, microbatches they take, layers they hold.

Knows the rules that `torch.distributed.pipelining` 2.11 to 2.13 enforces when it builds a
schedule (read in its source). Does not know time (bubbles come with the model of time).
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise

from engine.config import Parallelism, ScheduleName
from engine.planner.stack import TITAN, Stack
from engine.shapes import ModelShape, block_parameters

SINGLE_STAGE: frozenset[ScheduleName] = frozenset({"GPipe", "1F1B"})
V_SHAPED: frozenset[ScheduleName] = frozenset({"ZBVZeroBubble", "DualPipeV"})
ZERO_BUBBLE: frozenset[ScheduleName] = frozenset({"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})


def stages_of_a_rank(parallelism: Parallelism, n_layers: int, *, stack: Stack = TITAN) -> int | None:
    """Stages that each pipeline rank holds; None where layers_per_stage does not give each rank equally many.

    A stack that `rounds_stages_up` then takes the next number that does.
    """
    pp = parallelism.pipeline_parallel_degree
    if pp == 1:
        return 1  # the pipeline's other keys are without effect
    if parallelism.pipeline_parallel_layers_per_stage is None:
        return 1 if parallelism.pipeline_parallel_schedule in SINGLE_STAGE else 2
    stages = -(-n_layers // parallelism.pipeline_parallel_layers_per_stage)
    return -(-stages // pp) if stages % pp == 0 or stack.rounds_stages_up else None


def most_stages(n_layers: int, stack: Stack = TITAN) -> int:
    """Stages that a model can be cut in: one layer each, and where a stack lets them, embedding and head alone."""
    return n_layers + (2 if stack.splits_layers == "evenly" else 0)


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


def layers_of_stages(
    shape: ModelShape, parallelism: Parallelism, stages: int, *, stack: Stack = TITAN
) -> tuple[tuple[int, ...], ...]:
    """Layer indices of each stage of a model; none has more than `pipeline_parallel_layers_per_stage`, where given.

    The head counts as the blocks that have as many weights: it multiplies every token, as they do. With
    Llama 3 8B that is 2.4, and four stages hold 8, 9, 9 and 6 layers: the slowest works for 9 blocks,
    where 8 each would make it 10.4. With 405B it is 0.7: of 126 layers on 16 stages the first and
    the last hold 7, the others 8, as it was trained (arXiv 2407.21783). A table that is looked up takes
    no time, but memory, of which the first stage has least: so it is the first to hold a layer less.
    Other stacks split by count, where that leaves every stage a layer; Megatron's first stage may be the embedding
    alone, and its last the head.
    """
    counts = _counts(shape.n_layers, stages, stack)
    if min(counts, default=0) > 0 or (stages == most_stages(shape.n_layers, stack) > shape.n_layers):
        return _contiguous(counts)
    pp, given = parallelism.pipeline_parallel_degree, parallelism.pipeline_parallel_layers_per_stage
    turns = parallelism.pipeline_parallel_schedule in V_SHAPED and stages == 2 * pp
    return split_layers(
        shape.n_layers,
        tuple(min(stage, stages - 1 - stage) if turns else stage % pp for stage in range(stages)),
        head_blocks=shape.vocab_size * shape.dim / sum(weight.numel for weight in block_parameters(shape).values()),
        most=given if pp > 1 else None,
    )


@cache
def split_layers(
    n_layers: int, ranks: tuple[int, ...], *, head_blocks: float = 0.0, most: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Layer indices of each stage: contiguous, every layer once, none empty, and the slowest rank as fast as can be.

    `ranks` are those that stages lie on. The last stage has the head beside its layers, which counts as
    `head_blocks` of them. Each layer goes to the rank with the least work, there to the stage with the
    least, and of stages alike to the one nearest to the middle: the ends have most else to hold.
    """
    last = len(ranks) - 1
    counts = [0] * len(ranks)
    of_stage, of_rank = [0.0] * last + [head_blocks], dict.fromkeys(ranks, 0.0)
    of_rank[ranks[last]] = head_blocks

    def urgency(stage: int) -> tuple[bool, float, float, int, int]:
        return counts[stage] > 0, of_rank[ranks[stage]], of_stage[stage], abs(2 * stage - last), -stage

    for _ in range(n_layers):
        stage = min((stage for stage in range(last + 1) if most is None or counts[stage] < most), key=urgency)
        counts[stage] += 1
        of_stage[stage] += 1
        of_rank[ranks[stage]] += 1
    return _contiguous(counts)


def _counts(n_layers: int, stages: int, stack: Stack) -> list[int]:
    """Layers of each stage under a stack that splits by count, else none.

    Embedding and head stand for a layer each; of what does not divide, the first stages have one more
    (torchtitan's generate_llm_fqn_per_model_part).
    """
    if stages == 1 or stack.splits_layers == "by_work":
        return []
    if stack.splits_layers == "evenly" and n_layers % stages == 0:
        return [n_layers // stages] * stages
    each, more = divmod(n_layers + 2, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def _contiguous(counts: list[int]) -> tuple[tuple[int, ...], ...]:
    ends = [0, *accumulate(counts)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(ends))
