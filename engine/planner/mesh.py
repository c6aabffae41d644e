"""The degrees of a layout, resolved.

Knows the five axes and that their product is the world. Does not know what is split over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from engine.config import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the five axes, outermost first: ranks of `tp` are neighbours."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int

    @property
    def world_size(self) -> int:
        """Product of all axes."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def fsdp(self) -> int:
        """Ranks over which weights, gradients and optimizer states are sharded."""
        return self.dp_shard * self.cp


def resolve_mesh(parallelism: Parallelism, world_size: int) -> Mesh | None:
    """The degrees with -1 filled in; None where their product cannot be the world size."""
    p = parallelism
    others = (
        p.data_parallel_replicate_degree,
        p.context_parallel_degree,
        p.tensor_parallel_degree,
        p.pipeline_parallel_degree,
    )
    if min(others) < 1:
        return None
    fixed = prod(others)
    shard = world_size // fixed if p.data_parallel_shard_degree == -1 else p.data_parallel_shard_degree
    if shard < 1 or fixed * shard != world_size:
        return None
    return Mesh(
        pp=p.pipeline_parallel_degree,
        dp_replicate=p.data_parallel_replicate_degree,
        dp_shard=shard,
        cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree,
    )
