"""Dispatch modes that watch what a piece of work holds and does, on any device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watching(TorchDispatchMode):
    """Peak bytes of what is allocated within it, calls by operation, and the largest tensor of a given last width."""

    def __init__(self, *, width: int = 0) -> None:
        super().__init__()
        self.peak_bytes = 0
        self.calls: Counter[str] = Counter()
        self.widest_bytes = 0
        self._width = width
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func.name().partition(".")[0]] += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                if self._width and tensor.ndim > 1 and tensor.shape[-1] == self._width:
                    self.widest_bytes = max(self.widest_bytes, tensor.nbytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())
        return out

    def live_bytes(self) -> int:
        """Bytes of what was allocated or looked at within it and is still there."""
        self._storages = {key: held for key, held in self._storages.items() if not held[0].expired()}
        return sum(nbytes for _, nbytes in self._storages.values())
