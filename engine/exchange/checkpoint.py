"""Single tensors of a committed checkpoint, in one process without a group: whichever layout wrote it.

Knows how DCP is asked for one tensor. Does not know what a checkpoint must hold (checkpoint/manifest.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from engine.checkpoint.agreed import reason
from engine.checkpoint.store import reader_of
from engine.checkpoint.whole import wrong_values
from engine.errors import Finding
from engine.exchange.whole import WorkFailed


class StoredCheckpoint:
    """The weights of a checkpoint by name, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        """WorkFailed D653 where what stands beside the tensors cannot be read."""
        self._path = path
        try:
            self._whole_metadata = reader_of(path).read_metadata()
            self._metadata = self._whole_metadata.state_dict_metadata
        except Exception as error:  # pickled by torch: whatever a damaged file makes of it
            raise _broken(f"{path} cannot be read: {error}") from error

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors that are kept, by name."""
        kept = self._metadata.items()
        return {name: tuple(each.size) for name, each in kept if isinstance(each, TensorStorageMetadata)}

    def whole(self, name: str) -> Tensor:
        """A weight, whole, on the CPU, in the precision that it is kept in; WorkFailed D653 where it is not there."""
        kept = self._metadata.get(name)
        if not isinstance(kept, TensorStorageMetadata):
            raise _broken(f"{self._path} lacks {name}")
        tensor = torch.empty(kept.size, dtype=kept.properties.dtype)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with warnings.catch_warnings():
            # It says that there is no group, which is what is meant.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            try:
                load({name: tensor}, storage_reader=reader_of(self._path), planner=planner, no_dist=True)
            except CheckpointException as failure:
                why = reason(next(iter(failure.failures.values()))[0])
                raise _broken(f"{name} of {self._path} cannot be read: {why}") from failure
        return tensor

    def require_sound(self, names: Collection[str]) -> None:
        """WorkFailed D653 where a weight is not what was saved: torch writes checksums, and its load looks at none."""
        for fault in wrong_values(self._path, self._whole_metadata, names):
            raise _broken(f"{fault.tensor} in {self._path / fault.file} is not to be used: {fault.why}")


def _broken(message: str) -> WorkFailed:
    fix = "look at it with titan checkpoint verify, and take another step if it is damaged"
    return WorkFailed(Finding(rule="D653", severity="error", key="checkpoint.folder", message=message, fix=fix))
