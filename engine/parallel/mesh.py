"""Ranks: the process group and the mesh of five axes.

Knows how processes meet, on which device each works and which ranks share an axis. Does not know
what is sent. The private names of torch about meshes and groups stand here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from engine.planner.plan import Mesh

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
FSDP = "fsdp"
"""Axis made of dp_shard and cp: the ranks over which weights are sharded."""


def local_device(device_type: str) -> torch.device:
    """The device of this process: its own GPU by LOCAL_RANK, or the CPU."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(device: torch.device, *, world_size: int, timeout_s: float) -> Iterator[None]:
    """The group of all ranks: the one that is there, that of torchrun's environment, or one process alone."""
    if dist.is_initialized():
        assert dist.get_world_size() == world_size, (
            f"the plan is for {world_size} processes and {dist.get_world_size()} are here"
        )
        yield
        return
    backend = "gloo" if device.type == "cpu" else "nccl"
    timeout = timedelta(seconds=timeout_s)
    bound = None if device.type == "cpu" else device
    if "RANK" in os.environ:
        found = int(os.environ["WORLD_SIZE"])
        assert found == world_size, f"the plan is for {world_size} processes and {found} were started"
        dist.init_process_group(backend, timeout=timeout, device_id=bound)
    else:
        assert world_size == 1, f"the plan is for {world_size} processes: start them with torchrun"
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout, device_id=bound
        )
    try:
        yield
    finally:
        dist.destroy_process_group()


def build_mesh(degrees: Mesh, device_type: str) -> DeviceMesh:
    """All five axes, those of size 1 too, and the axis `fsdp` of dp_shard and cp together."""
    sizes = tuple(getattr(degrees, axis) for axis in AXES)
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=AXES)
    mesh["dp_shard", "cp"]._flatten(FSDP)
    return mesh


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """What `fully_shard` gets: (fsdp), or (dp_replicate, fsdp) where the model has copies."""
    return mesh["dp_replicate", FSDP] if mesh["dp_replicate"].size() > 1 else mesh[FSDP]


def data_rank(mesh: DeviceMesh) -> int:
    """Which part of the data this rank reads: ranks that differ only in cp, tp or pp read the same."""
    return mesh["dp_replicate"].get_local_rank() * mesh["dp_shard"].size() + mesh["dp_shard"].get_local_rank()


def counts_tokens(mesh: DeviceMesh) -> bool:
    """Whether this rank's tokens and loss enter sums over the world: one rank of each tp and pp group does."""
    return mesh["tp"].get_local_rank() == 0 and mesh["pp"].get_local_rank() == mesh["pp"].size() - 1


def set_timeout(mesh: DeviceMesh, timeout_s: float) -> None:
    """Sets the longest wait in a collective, for the world and every axis of the mesh."""
    groups = [None, *(mesh[axis].get_group() for axis in (*AXES, FSDP))]
    if mesh["dp_replicate"].size() > 1:
        groups += sharding_mesh(mesh).get_all_groups()
    for group in groups:
        _set_pg_timeout(timedelta(seconds=timeout_s), group)
