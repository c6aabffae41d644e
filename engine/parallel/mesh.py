"""Ranks: the process group and the mesh of five axes.

Knows how processes meet, on which device each works and which ranks share an axis. Does not know
what is sent. The private names of torch about meshes and groups stand here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from engine.planner.plan import Mesh

COLLECTIVE_MARGIN_S = 60.0
"""A collective gives up so long after the deadline of a rank (engine/pulse): the rank that is stuck is named first."""

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The mesh of all five axes, those of size 1 too, and what is derived from it.

    `fsdp` is dp_shard and cp in one: the ranks over which weights are sharded. `sharding` is
    what `fully_shard` takes: (fsdp), or (dp_replicate, fsdp) where the model has copies.
    """

    axes: DeviceMesh
    fsdp: DeviceMesh
    sharding: DeviceMesh

    def rank_on(self, axis: str) -> int:
        """This rank's place on an axis."""
        return self.axes[axis].get_local_rank()

    def size_of(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.axes[axis].size()

    @property
    def data_rank(self) -> int:
        """Which part of the data this rank reads: ranks that differ only in cp, tp or pp read the same."""
        return self.rank_on("dp_replicate") * self.size_of("dp_shard") + self.rank_on("dp_shard")

    @property
    def counts_tokens(self) -> bool:
        """Whether this rank's batches enter the count of tokens: one of the ranks that read the same does."""
        return self.rank_on("tp") == self.rank_on("cp") == self.rank_on("pp") == 0

    def set_timeout(self, deadline_s: float) -> None:
        """Sets the longest wait in a collective, for the world and every axis: the margin more than a deadline."""
        groups = [None, self.fsdp.get_group(), *(self.axes[axis].get_group() for axis in AXES)]
        for group in groups:
            _set_pg_timeout(timedelta(seconds=deadline_s + COLLECTIVE_MARGIN_S), group)


def local_device(device_type: str) -> torch.device:
    """The device of this process: its own GPU by LOCAL_RANK, or the CPU."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(
    device: torch.device, *, world_size: int, deadline_s: float, met: Callable[[Any, int], None] | None = None
) -> Iterator[None]:
    """The group of all ranks: the one that is there, that of torchrun's environment, or one process alone.

    Its collectives give up the margin later than a deadline. Of several processes that meet here each calls `met` with
    the store they share and its rank, before there is any connection between them.
    """
    if dist.is_initialized():
        assert dist.get_world_size() == world_size, (
            f"the plan is for {world_size} processes and {dist.get_world_size()} are here"
        )
        yield
        return
    backend = "gloo" if device.type == "cpu" else "nccl"
    timeout = timedelta(seconds=deadline_s + COLLECTIVE_MARGIN_S)
    bound = None if device.type == "cpu" else device
    if "RANK" in os.environ:
        found = int(os.environ["WORLD_SIZE"])
        assert found == world_size, f"the plan is for {world_size} processes and {found} were started"
        store, rank, _ = next(rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        if met is not None and world_size > 1:
            met(store, rank)
        # As init_process_group does where it meets by itself.
        store = dist.PrefixStore("default_pg", store)  # type: ignore[attr-defined]
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=bound
        )
    else:
        assert world_size == 1, f"the plan is for {world_size} processes: start them with torchrun"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=bound)
    try:
        yield
    except BaseException:
        # Others may wait in a collective that this process will not join, and taking the group down would wait for
        # them: leave that to the end of the process.
        if world_size == 1:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def build_world(degrees: Mesh, device_type: str) -> World:
    """Lays the ranks out on the axes; every process of the plan calls it at once."""
    sizes = tuple(getattr(degrees, axis) for axis in AXES)
    axes = init_device_mesh(device_type, sizes, mesh_dim_names=AXES)
    fsdp = axes["dp_shard", "cp"]._flatten("fsdp")
    sharding = DeviceMesh._concatenate([axes["dp_replicate"], fsdp]) if degrees.dp_replicate > 1 else fsdp
    return World(axes=axes, fsdp=fsdp, sharding=sharding)
