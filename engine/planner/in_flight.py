"""How many microbatches a pipeline rank holds activations of, at its fullest moment.

Knows the order of operations in the schedules of torch.distributed.pipelining 2.11 to 2.13 (the
test counts them in torch's own). Does not know bytes (activations) or time.
"""

from __future__ import annotations

from engine.config import ScheduleName


def in_flight(schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int) -> list[int]:
    """Microbatches held by each stage of a rank, in the order of its stages, when it holds most in all.

    A stage holds a microbatch from its forward until the whole backward; in zero-bubble schedules
    until the gradient of the weights, which they put off.
    """
    last = pp - 1 - pp_rank
    match schedule:
        case "1F1B":
            return [min(microbatches, last + 1)]
        case "Interleaved1F1B":
            # Forwards before the first backward, and the one beside it (arXiv 2104.04473).
            return _in_rounds(2 * last + 1, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
        case "InterleavedZeroBubble":
            # Half the warmup, and the weights' gradients of `pp_rank` microbatches put off (arXiv 2401.10241, ZB-H1).
            return _in_rounds(pp, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
        case "ZBVZeroBubble":
            # As much as 1F1B holds on its first rank, here on every rank (arXiv 2401.10241, section 6).
            return [min(microbatches, pp + last), min(microbatches, pp_rank + 1)]
        case "DualPipeV":
            # One more than that: a forward and a backward run side by side (arXiv 2412.19437, figure 5).
            return [min(microbatches, pp + last + 1), min(microbatches, pp_rank + 1)]
        case "GPipe" | "LoopedBFS":
            return [microbatches] * stages_a_rank


def _in_rounds(warmup: int, *, pp: int, stages_a_rank: int, microbatches: int) -> list[int]:
    """Interleaved: stages take turns of one round of microbatches; `warmup` follows the turns of all but one."""
    round_size = microbatches // max(1, microbatches // pp)
    forwards = min((stages_a_rank - 1) * round_size + warmup, stages_a_rank * microbatches)
    turns, begun = divmod(forwards, round_size)
    held = [turns // stages_a_rank * round_size] * stages_a_rank
    for stage in range(turns % stages_a_rank):
        held[stage] += round_size
    held[turns % stages_a_rank] += begun
    return held
