"""How long a pipeline schedule takes, and so what of it each rank is idle.

Knows the order of operations of the schedules in torch.distributed.pipelining 2.11 to 2.13, as closed forms (the test
holds them against a clock that runs torch's own order). Does not know what a stage takes (compute,
messages), nor what happens before the first and after the last microbatch (timing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TypeAlias

from engine.config import ScheduleName
from engine.planner.schedule import stage_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one microbatch on one stage, communication that stays in the open included."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    def __hash__(self) -> int:
        """Of what differs most: pipelines of them are looked up."""
        return hash((self.forward_s, self.input_gradient_s))

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s


Stages: TypeAlias = tuple[StageTime, ...]
"""All stages of the model, in its order."""


@cache
def makespan_s(schedule: ScheduleName, stages: Stages, *, pp: int, microbatches: int, hop_s: float = 0.0) -> float:
    """Seconds from the first forward to the last backward; `hop_s` is the way of a microbatch to the next rank.

    The slowest rank works on all microbatches, and is idle while the first one reaches it and while the last one
    goes the rest of its way: that is what differs between schedules. Exact with equal stages that send for nothing,
    but for V-shaped ones with few microbatches; with unequal stages within a few percent.
    """
    a_rank = len(stages) // pp
    held = [
        [stages[index] for index in stage_indices(schedule, pp_rank=rank, pp=pp, stages_a_rank=a_rank)]
        for rank in range(pp)
    ]
    busy = [sum(stage.total_s for stage in mine) for mine in held]
    if pp == 1:
        return microbatches * busy[0]
    match schedule:
        case "1F1B":
            return _one_by_one_s(stages, pp=pp, microbatches=microbatches, hop_s=hop_s)
        case "GPipe" | "LoopedBFS":
            return _round_by_round_s(stages, pp=pp, microbatches=microbatches, hop_s=hop_s)
        case _:
            ramps = _ramps_s(schedule, held)
            both_ways = 2 * (len(stages) - 1) * hop_s
            slowest = max(work * microbatches + ramp for work, ramp in zip(busy, ramps, strict=True))
            # A microbatch more cannot start before an earlier one is through: with few of them nothing else limits.
            return max(slowest, sum(stage.total_s for stage in stages)) + both_ways


def _one_by_one_s(stages: Stages, *, pp: int, microbatches: int, hop_s: float) -> float:
    """1F1B (arXiv 2006.16668 names it; the schedule of PipeDream-flush, arXiv 2006.09503).

    Rank r has at most pp - r microbatches under way. Before its first backward it waits for the ranks behind, less
    what it does of other microbatches meanwhile; the same again at its end. And no microbatch goes
    round faster than those under way allow: sending is not hidden where every rank waits for its neighbour.
    """
    totals = [stage.total_s for stage in stages]
    behind = [*accumulate(reversed(totals))][::-1]
    before = [0.0, *accumulate(totals)]
    slowest = period = 0.0
    for rank, stage in enumerate(stages):
        last = pp - 1 - rank
        rest = behind[rank] - totals[rank]
        idle = sum(
            max(0.0, rest - min(last, microbatches - 1) * mine)
            for mine in (stage.forward_s, stage.input_gradient_s + stage.weight_gradient_s)
        )
        slowest = max(slowest, before[rank] + microbatches * totals[rank] + idle)
        period = max(period, (behind[rank] + 2 * last * hop_s) / (last + 1))
    return max(slowest + 2 * (pp - 1) * hop_s, behind[0] + 2 * (pp - 1) * hop_s + (microbatches - 1) * period)


def _round_by_round_s(stages: Stages, *, pp: int, microbatches: int, hop_s: float) -> float:
    """All microbatches through one stage of every rank, then through the next, at the pace of its slowest.

    A round is as long as the pipeline where microbatches are fewer than ranks.
    """
    rounds = [stages[start : start + pp] for start in range(0, len(stages), pp)]
    total = 0.0
    for way in ([[stage.forward_s for stage in turn] for turn in rounds], [_backward_s(turn) for turn in rounds]):
        paces = [max(turn) for turn in way]
        last = way[paces.index(max(paces))]
        total += sum(paces[1:]) * max(pp, microbatches) + paces[0] * microbatches + sum(last) - max(last)
    return total + 2 * (pp - 1) * hop_s


def _backward_s(stages: Stages) -> list[float]:
    return [stage.input_gradient_s + stage.weight_gradient_s for stage in stages]


def _ramps_s(schedule: ScheduleName, held: list[list[StageTime]]) -> list[float]:
    """Idle seconds of each rank, if it is the slowest: one stage's share for each other rank."""
    shares = [_share_s(schedule, mine) for mine in held]
    # DualPipeV starts a backward beside a forward: one forward less waits where backward is the longer.
    early = [
        min(mine[0].forward_s, max(0.0, mine[0].input_gradient_s - mine[0].forward_s))
        if schedule == "DualPipeV"
        else 0.0
        for mine in held
    ]
    return [max(0.0, sum(shares) - share - first) for share, first in zip(shares, early, strict=True)]


def _share_s(schedule: ScheduleName, mine: list[StageTime]) -> float:
    """What a rank lets the others wait for, from the mean of its stages.

    Interleaved: a forward and a backward of one stage (arXiv 2104.04473, section 2.2). Zero bubble: weight
    gradients fill what they can (arXiv 2401.10241, sections 2 and 6), but torch puts them where they were in an
    order for equal operations, so where forward, input and weight gradient differ something stays.
    """
    count = len(mine)
    forward = sum(stage.forward_s for stage in mine) / count
    inputs = sum(stage.input_gradient_s for stage in mine) / count
    weights = sum(stage.weight_gradient_s for stage in mine) / count
    match schedule:
        case "InterleavedZeroBubble":
            return max(forward, inputs, forward + inputs - weights)
        case "ZBVZeroBubble":
            return max(forward, inputs, 2 * (inputs - weights))
        case "DualPipeV":
            return max(forward, forward + inputs - weights + max(0.0, inputs - forward))
        case _:
            return forward + inputs + weights
