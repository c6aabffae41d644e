"""Copies in the host's memory, from which a checkpoint is written while the originals change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from engine.checkpoint.staging import Staging


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_stays_as_it_was_when_the_original_changes(pinned: bool) -> None:
    staging, weight = Staging(torch.device("cpu"), pinned=pinned), torch.arange(6.0).view(2, 3)
    copies = staging.copy({"weight": weight})
    staging.wait()
    staging.hold_updates()
    weight.mul_(2)
    assert copies["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_the_next_copy_takes_the_memory_of_the_one_before() -> None:
    staging, weight = Staging(torch.device("cpu"), pinned=False), torch.zeros(4)
    first = staging.copy({"weight": weight})["weight"]
    second = staging.copy({"weight": weight + 1})["weight"]
    assert (second.data_ptr(), second.tolist()) == (first.data_ptr(), [1.0] * 4)


def test_a_copy_of_a_shard_knows_where_it_belongs(mesh: DeviceMesh) -> None:
    shard = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)])
    copy = Staging(torch.device("cpu"), pinned=False).copy({"weight": shard})["weight"]
    assert isinstance(copy, DTensor)
    assert (copy.placements, copy.device_mesh, copy.shape) == (shard.placements, mesh, shard.shape)
    assert copy.to_local().data_ptr() != shard.to_local().data_ptr()
