"""How many microbatches a pipeline rank holds, and what it does, when it is at its fullest.

Knows what each of a rank's stages holds along its order of work (order). Does not know bytes: which of
these moments needs most is for who knows them (peak).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from operator import ge
from typing import Literal, NamedTuple

from engine.config import ScheduleName
from engine.planner.order import Action, Kind, rank_order


class Fullness(NamedTuple):
    """What a rank holds while a stage computes, for each of its stages.

    `kind` is what it does; `sum` is that of its gradients over ranks. `held` are microbatches from their forward until
    their whole backward, that of now included; `put_off` those of them whose backward for the weights comes later.
    `graded` is true for a stage that has gradients of an earlier microbatch, which are whole until its last one;
    `summed` for one that is through.
    """

    kind: Kind | Literal["sum"]
    stage: int
    held: tuple[int, ...]
    put_off: tuple[int, ...]
    graded: tuple[bool, ...]
    summed: tuple[bool, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """All that there can be more or less of."""
        return self.held + self.put_off + self.graded + self.summed

    def covers(self, other: Fullness) -> bool:
        """Whether nothing of `other` is more than here, while the same stage does the same."""
        return (self.kind, self.stage) == (other.kind, other.stage) and all(map(ge, self.counts, other.counts))


# A rank without a pipeline: one microbatch, forward and backward.
ALONE: tuple[Fullness, ...] = (
    Fullness("F", 0, (1,), (0,), (False,), (False,)),
    Fullness("B", 0, (1,), (0,), (False,), (False,)),
)


def fullest(
    schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int
) -> tuple[Fullness, ...]:
    """The moments of an accumulation step at which a rank can be fullest: none is covered by another."""
    return _fullest(schedule, pp_rank, pp, stages_a_rank, enough_of(schedule, microbatches, pp=pp))


@cache
def _fullest(schedule: ScheduleName, pp_rank: int, pp: int, stages_a_rank: int, count: int) -> tuple[Fullness, ...]:
    if schedule in _ALL_AT_ONCE:
        return tuple(_all_at_once(stages_a_rank, count))
    order = rank_order(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=count)
    states = dict.fromkeys(_along(order, stages_a_rank, count))
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    kept: set[Fullness] = set()
    # What covers another holds more in all: so nothing that is kept is covered by what comes later.
    for state in sorted(states, key=lambda state: sum(state.counts), reverse=True):
        alike = found.setdefault((state.kind, state.stage), [])
        counts = state.counts
        if not any(all(map(ge, other, counts)) for other in alike):
            alike.append(counts)
            kept.add(state)
    return tuple(state for state in states if state in kept)


def in_flight(schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int) -> list[int]:
    """Microbatches held by each stage of a rank, in the order of its stages, when it first holds most in all."""
    if schedule in _ALL_AT_ONCE:
        return [microbatches] * stages_a_rank
    count = enough_of(schedule, microbatches, pp=pp)
    order = rank_order(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=count)
    return list(max((state.held for state in _along(order, stages_a_rank, count)), key=sum))


_ALL_AT_ONCE: frozenset[ScheduleName] = frozenset({"GPipe", "LoopedBFS"})
# Rounds of as many microbatches as there are ranks, after which a schedule only repeats itself.
_ROUNDS = 3


def enough_of(schedule: ScheduleName, microbatches: int, *, pp: int) -> int:
    """So many microbatches that a rank with more is never fuller; rounds keep their size."""
    if schedule in _ALL_AT_ONCE:
        return microbatches
    if schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
        rounds = max(1, microbatches // pp)
        return microbatches // rounds * min(rounds, _ROUNDS)
    return min(microbatches, _ROUNDS * pp)


def _all_at_once(stages: int, microbatches: int) -> Iterator[Fullness]:
    """All forwards, stage by stage, then all backwards the other way."""
    none, nothing = (False,) * stages, (0,) * stages

    def held(stage: int, count: int) -> tuple[int, ...]:
        return (*(microbatches,) * stage, count, *(0,) * (stages - stage - 1))

    for stage in range(stages):
        through = (*(False,) * (stage + 1), *(True,) * (stages - stage - 1))
        graded = tuple(index == stage for index in range(stages))
        yield Fullness("F", stage, held(stage, microbatches), nothing, none, none)
        yield Fullness("B", stage, held(stage, microbatches), nothing, none, through)
        if microbatches > 1:
            yield Fullness("B", stage, held(stage, microbatches - 1), nothing, graded, through)
        yield Fullness("sum", stage, held(stage, 0), nothing, none, tuple(i >= stage for i in range(stages)))


def _along(order: Iterable[Action], stages: int, microbatches: int) -> Iterator[Fullness]:
    """What is held during each action, before it frees anything."""
    held, put_off, done = [0] * stages, [0] * stages, [0] * stages
    graded = summed = (False,) * stages
    for kind, stage in order:
        held[stage] += kind == "F"
        put_off[stage] += kind == "I"
        yield Fullness(kind, stage, tuple(held), tuple(put_off), graded, summed)
        if kind in ("B", "W"):
            held[stage] -= 1
            put_off[stage] -= kind == "W"
            done[stage] += 1
            if done[stage] in (1, microbatches):
                graded = tuple(0 < count < microbatches for count in done)
                summed = tuple(count == microbatches for count in done)
            if done[stage] == microbatches:
                yield Fullness("sum", stage, tuple(held), tuple(put_off), graded, summed)
