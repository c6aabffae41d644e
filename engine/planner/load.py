"""What a rank's memory depends on, and what stands in it at one point of a step.

Knows the names of both. Does not know which points there are (moments) or what is made of them (peak).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.planner.activations import Work
from engine.planner.in_flight import Fullness
from engine.planner.memory import Memory
from engine.planner.recompute import Recompute
from engine.planner.sharding import Groups, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All that a rank's memory depends on.

    `stages` are the layers of each of its stages, `states` its fullest moments, `update_bytes` what the optimizer takes
    for itself, `tables_bytes` rotary tables for the whole run and `places_bytes` those of one microbatch's tokens.
    `has_streams`: the allocator keeps a pool for each stream of a GPU, and what is free in one is of no use to the
    others, so `reserved_bytes` sums the pools.
    """

    static: Memory
    work: Work
    recompute: Recompute
    groups: Groups
    sharding: Sharding
    stages: tuple[tuple[int, ...], ...]
    states: tuple[Fullness, ...]
    has_loss: bool
    pipelined: bool
    update_bytes: int
    tables_bytes: int
    places_bytes: int
    has_streams: bool

    def __hash__(self) -> int:
        """Of what differs most: a search looks thousands up."""
        return hash((self.work, self.recompute, self.states, self.static.params_bytes, self.has_loss))


class Moment(NamedTuple):
    """What stands beside parameters and optimizer states at one point of a step.

    `gathering_bytes` and `grads_bytes` (summed and sharded) lie in pools of their own.
    """

    name: str
    activations_bytes: int = 0
    logits_bytes: int = 0
    communication_bytes: int = 0
    gathering_bytes: int = 0
    update_bytes: int = 0
    grads_bytes: int = 0
    lost_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All that is used."""
        return self.laid_out_bytes - self.lost_bytes + self.grads_bytes + self.gathering_bytes

    @property
    def laid_out_bytes(self) -> int:
        """What the stream that computes needs for it, holes included."""
        used = self.activations_bytes + self.logits_bytes + self.communication_bytes + self.update_bytes
        return used + self.lost_bytes
