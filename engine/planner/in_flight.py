"""How many microbatches a pipeline rank holds, and what it does, when it is at its fullest.

Knows what each of a rank's stages holds along its order of work (order). Does not know bytes: which of
these moments needs most is for who knows them (peak).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from engine.config import ScheduleName
from engine.planner.order import Action, Kind, rank_order


class Fullness(NamedTuple):
    """What a rank holds while a stage computes, for each of its stages.

    `held` are microbatches from their forward until their whole backward, that of now included; `put_off` those
    of them whose backward for the weights comes later; `graded` is true for a stage that has gradients of an earlier
    microbatch, which are not summed over ranks until its last one; `summed` for one that is through.
    """

    kind: Kind
    stage: int
    held: tuple[int, ...]
    put_off: tuple[int, ...]
    graded: tuple[bool, ...]
    summed: tuple[bool, ...]

    def covers(self, other: Fullness) -> bool:
        """Whether nothing of `other` is more than here, while the same stage does the same."""
        return (
            (self.kind, self.stage) == (other.kind, other.stage)
            and all(map(int.__ge__, self.held, other.held))
            and all(map(int.__ge__, self.put_off, other.put_off))
            and all(map(int.__ge__, self.graded, other.graded))
            and all(map(int.__ge__, self.summed, other.summed))
        )


# A rank without a pipeline: one microbatch, forward and backward.
ALONE = (
    Fullness("F", 0, (1,), (0,), (False,), (False,)),
    Fullness("B", 0, (1,), (0,), (False,), (False,)),
)


@cache
def fullest(
    schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int
) -> tuple[Fullness, ...]:
    """The moments of an accumulation step at which a rank can be fullest: none is covered by another."""
    order = rank_order(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
    found: list[Fullness] = []
    for state in dict.fromkeys(_along(order, stages_a_rank, microbatches)):
        if not any(other.covers(state) for other in found):
            found = [*(other for other in found if not state.covers(other)), state]
    return tuple(found)


def in_flight(schedule: ScheduleName, *, pp_rank: int, pp: int, stages_a_rank: int, microbatches: int) -> list[int]:
    """Microbatches held by each stage of a rank, in the order of its stages, when it first holds most in all."""
    order = rank_order(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
    return list(max((state.held for state in _along(order, stages_a_rank, microbatches)), key=sum))


def _along(order: Iterable[Action], stages: int, microbatches: int) -> Iterator[Fullness]:
    """What is held during each action, before it frees anything."""
    held, put_off, done = [0] * stages, [0] * stages, [0] * stages
    for kind, stage in order:
        held[stage] += kind == "F"
        put_off[stage] += kind == "I"
        yield Fullness(
            kind,
            stage,
            tuple(held),
            tuple(put_off),
            tuple(0 < count < microbatches for count in done),
            tuple(count == microbatches for count in done),
        )
        if kind in ("B", "W"):
            held[stage] -= 1
            put_off[stage] -= kind == "W"
            done[stage] += 1
