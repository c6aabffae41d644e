"""The order in which a pipeline rank does its work: forwards and backwards of its stages.

Knows the rank's own order in the schedules of `torch.distributed.pipelining` 2.11 to 2.13 (the test
compares it with torch's own). Does not know when another rank is waited for (time), nor bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from engine.config import ScheduleName

Kind: TypeAlias = Literal["F", "B", "I", "W"]
"""Forward, whole backward, backward for the input alone, and that for the weights, which comes later."""


class Action(NamedTuple):
    """One microbatch through one of the rank's stages, counted from 0 in the order in which a forward passes them."""

    kind: Kind
    stage: int


@cache
def rank_order(
    schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int
) -> tuple[Action, ...]:
    """All that one rank does in an accumulation step; microbatches go through each stage in their order."""
    match schedule:
        case "1F1B":
            return tuple(_one_stage(min(microbatches, pp - pp_rank), microbatches))
        case "GPipe":
            return tuple(_one_stage(microbatches, microbatches))
        case "LoopedBFS":
            stages = range(stages_a_rank)
            forwards = [Action("F", stage) for stage in stages for _ in range(microbatches)]
            return (*forwards, *(Action("B", stage) for stage in reversed(stages) for _ in range(microbatches)))
        case "Interleaved1F1B" | "InterleavedZeroBubble":
            splits = schedule == "InterleavedZeroBubble"
            rounds = _Rounds(pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
            return tuple(_interleaved(rounds, pp_rank=pp_rank, splits=splits))
        case "ZBVZeroBubble":
            order = _v_shaped(pp_rank=pp_rank, pp=pp, microbatches=max(2 * pp - 1, microbatches))
            return tuple(_first(order, microbatches))
        case "DualPipeV":
            return tuple(_dual_pipe(pp_rank=pp_rank, pp=pp, microbatches=microbatches))


def _one_stage(warmup: int, microbatches: int) -> Iterator[Action]:
    """`warmup` forwards, then backward and forward in turn (arXiv 2104.04473)."""
    forward, backward = Action("F", 0), Action("B", 0)
    yield from [forward] * warmup
    yield from [backward, forward] * (microbatches - warmup)
    yield from [backward] * warmup


class _Rounds(NamedTuple):
    """Stages of a rank take turns of one round of microbatches."""

    pp: int
    stages_a_rank: int
    microbatches: int

    @property
    def size(self) -> int:
        """Microbatches of a round."""
        return self.microbatches // max(1, self.microbatches // self.pp)

    def turn(self, step: int) -> int:
        """The stage whose turn the n-th forward is."""
        return step // self.size % self.stages_a_rank


def _interleaved(rounds: _Rounds, *, pp_rank: int, splits: bool) -> Iterator[Action]:
    """1F1B over several stages (arXiv 2104.04473, section 2.2); with `splits` ZB-H1's (arXiv 2401.10241).

    There the warmup is half as long, and the weights' gradients of `pp_rank` microbatches are put off.
    """
    whole = rounds.stages_a_rank * rounds.microbatches
    ahead = (rounds.pp - 1 - pp_rank) * (1 if splits else 2)
    warmup = min((rounds.stages_a_rank - 1) * rounds.size + ahead, whole)
    put_off: deque[int] = deque()
    for step in range(warmup):
        yield Action("F", rounds.turn(step))
    for step in range(whole):
        if warmup + step < whole:
            yield Action("F", rounds.turn(warmup + step))
        stage = rounds.stages_a_rank - 1 - rounds.turn(step)
        yield Action("I" if splits else "B", stage)
        if splits:
            put_off.append(stage)
            if step >= pp_rank:
                yield Action("W", put_off.popleft())
    yield from (Action("W", stage) for stage in put_off)


def _v_shaped(*, pp_rank: int, pp: int, microbatches: int) -> Iterator[Action]:
    """ZB-V (arXiv 2401.10241, section 6): one stage on the way down and one on the way back."""
    down, back = 0, 1
    begun = 2 * (pp - pp_rank) - 1
    yield from [Action("F", down)] * begun
    yield from [Action("F", back), Action("F", down)] * pp_rank
    begun += pp_rank
    returned = pp_rank
    for _ in range(pp - pp_rank):
        yield from (Action("F", back), Action("I", back), Action("W", back))
        returned += 1
    while returned < begun or begun < microbatches:
        if begun < microbatches:
            yield Action("F", down)
            begun += 1
        yield from (Action("I", down), Action("W", down), Action("F", back), Action("I", back), Action("W", back))
        returned += 1
    yield from [Action("I", down), Action("I", back)] * pp_rank
    yield from [Action("I", down), Action("W", down)] * (pp - pp_rank)
    yield from [Action("W", back)] * pp_rank
    yield from [Action("W", down)] * pp_rank


def _first(order: Iterator[Action], microbatches: int) -> Iterator[Action]:
    """The order without the microbatches beyond those that there are."""
    seen: Counter[Action] = Counter()
    for action in order:
        if seen[action] < microbatches:
            yield action
        seen[action] += 1


def _dual_pipe(*, pp_rank: int, pp: int, microbatches: int) -> Iterator[Action]:
    """DualPipeV (arXiv 2412.19437, figure 5, cut in half): a forward and a backward run side by side."""
    down, back = 0, 1
    last = pp - 1 - pp_rank
    put_off: deque[int] = deque()

    def backward(stage: int, *, splits: bool) -> Action:
        if splits:
            put_off.append(stage)
        return Action("I" if splits else "B", stage)

    def weights() -> Iterator[Action]:
        if put_off:
            yield Action("W", put_off.popleft())

    yield from [Action("F", down)] * (2 * last)
    yield from [Action("F", down), Action("F", back)] * (pp_rank + 1)
    for _ in range(last):
        yield backward(back, splits=True)
        yield from weights()
        yield Action("F", back)
    for _ in range(microbatches - 2 * pp + pp_rank + 1):
        yield from (Action("F", down), Action("B", back), Action("F", back), Action("B", down))
    for _ in range(last):
        yield from (Action("B", back), Action("F", back), Action("B", down))
    half, odd = (pp_rank + 1) // 2, pp_rank % 2 == 1
    for step in range(pp_rank + 1):
        yield backward(back, splits=step > half or (step == half and odd))
        yield backward(down, splits=step >= half)
    for _ in range(last):
        yield from weights()
        yield backward(down, splits=True)
    for _ in range(pp_rank + 1):
        yield from weights()
