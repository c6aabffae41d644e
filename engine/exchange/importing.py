"""Weights from the files of others as a checkpoint of titan's, from which any run of any layout can begin.

Knows which folders it can read, and that no more than one tensor is in memory. Does not know how a checkpoint is
written (checkpoint/store.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from engine.checkpoint.committed import is_committed
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.store import METADATA, save
from engine.errors import TitanError
from engine.exchange.meta import MetaFolder, TorchtitanFolder, is_meta, shape_of_meta
from engine.exchange.reading import SafetensorsFolder, Source
from engine.huggingface.config_file import read_shape
from engine.huggingface.files import broken, refusals
from engine.shapes import ModelShape, parameter_count, part_parameters


@contextmanager
def opened(folder: Path, named: ModelShape | None = None) -> Iterator[tuple[Source, ModelShape]]:
    """A folder in Hugging Face's, Meta's or torchtitan's form, and its model; TitanError D650 to D653 for any other.

    `named` is the model of torchtitan's, which do not say it.
    """
    if (folder / METADATA).is_file() and not is_committed(folder):
        if named is None:
            fix = "name the model that it holds: --model 8B, or with a family --model qwen3-8B"
            raise TitanError(broken(f"{folder} is a checkpoint that does not say of which model", fix))
        yield TorchtitanFolder(folder, named), named
        return
    if is_meta(folder):
        shape = shape_of_meta(folder)
        yield MetaFolder(folder, shape), shape
        return
    shape = read_shape(folder)
    if wrong := refusals(folder, shape):
        raise TitanError(*wrong)
    with SafetensorsFolder(folder, shape) as source:
        yield source, shape


class _FromSource(DefaultSavePlanner):
    """torch's planner over tensors without memory: each is read when it is its turn to be written."""

    def __init__(self, source: Source, dtype: torch.dtype, written: Callable[[int], None]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._source, self._dtype, self._written = source, dtype, written

    def lookup_object(self, index: Any) -> Tensor:
        """The tensor of that name."""
        tensor = self._source.block(index.fqn).to(self._dtype).contiguous()
        self._written(tensor.nbytes)
        return tensor


def import_into(
    checkpoint: Path, source: Source, shape: ModelShape, *, dtype: str, versions: Any, written: Callable[[int], None]
) -> Manifest:
    """Writes and commits a checkpoint of weights at step 0; SaveFailed where it cannot be written.

    `written` is told of bytes as they come.
    """
    kind: torch.dtype = getattr(torch, dtype)
    parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    tensors = {name: torch.empty(weight.shape, dtype=kind, device="meta") for name, weight in parameters.items()}
    manifest = Manifest(
        step=0,
        samples=0,
        updates=0,
        layout={"world_size": 1, "mesh": {}, "device": "cpu"},
        config_sha256=hashlib.sha256(b"").hexdigest(),
        model=asdict(shape),
        parameters=parameter_count(shape),
        dtype=dtype,
        optimizer="none",
        lr_horizon={"steps": 0},
        data={},
        seed=0,
        versions=versions,
        files={},
    )
    with _alone() as group:
        return save(
            tensors,
            checkpoint,
            manifest,
            group=group,
            needed_bytes=parameter_count(shape) * kind.itemsize,
            planner=_FromSource(source, kind, written),
        )


@contextmanager
def _alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None, "a group was made"
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
