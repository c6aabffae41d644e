"""Bytes that are held while work is done, on fake tensors as on real ones.

Knows every storage that an operation gives, from then until nobody holds it any more, and at which
moment it was made. Does not know the allocator (what it rounds up or keeps back), nor
what a kernel takes for itself while it runs. `torch.UntypedStorage.resize_` is replaced
here, because no dispatch mode sees it and FSDP frees gathered weights by it; torch's own
MemTracker does the same. So is the method by which DTensor finds out what shape a result has: it
runs the operation on tensors of the whole shape that nobody holds on a GPU. Tried on 2.13.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Moment = Literal["build", "forward", "backward", "optimizer"]
Kind = Literal["parameters", "optimizer_states", "gathered", "activations", "backward", "update"]
"""What a storage is, as far as the moment in which it was made tells.

`gathered` was resized at least once: a weight that FSDP gathers. `activations` is all that forward
makes, logits too; `backward` are gradients and all else that backward makes, recomputed activations too.
"""

_WAIT = torch.ops._c10d_functional.wait_tensor.default
_PLAIN = (Tensor, Parameter, FakeTensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The fullest moment: bytes in all, and of each kind of storage."""

    total_bytes: int = 0
    moment: Moment = "build"
    kind_bytes: dict[Kind, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Storage:
    kind: Kind
    size_bytes: int
    alive: weakref.ref[torch.UntypedStorage]


class Holding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it every storage counts once, from the operation that made it.

    Whoever runs the work says by `during` what it is; what happens while autograd runs counts as
    backward whatever was said, because pipelines mix both.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = Peak()
        self.peaks_bytes: dict[Moment, int] = {}
        self.now_bytes = 0
        self.moment: Moment = "build"
        self._kind: Kind = "parameters"
        self._kind_bytes: Counter[Kind] = Counter()
        self._storages: dict[int, _Storage] = {}
        self._resize = torch.UntypedStorage.resize_
        self._infer_shape = ShardingPropagator._propagate_tensor_meta_non_cached
        self._infers = False

    @contextmanager
    def during(self, moment: Moment, kind: Kind) -> Iterator[None]:
        """Within it, what is made is of this kind, and a peak stands in this moment; an error leaves it at that."""
        before = self.moment, self._kind
        self.moment, self._kind = moment, kind
        yield
        self.moment, self._kind = before

    def __enter__(self) -> Self:
        resize, counts = self._resize, self._resized

        def resized(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            counts(storage)

        infer_shape, holding = self._infer_shape, self

        def infers(propagator: ShardingPropagator, *operation: Any) -> Any:
            before, holding._infers = holding._infers, True
            try:
                return infer_shape(propagator, *operation)
            finally:
                holding._infers = before

        torch.UntypedStorage.resize_ = resized  # type: ignore[assignment, method-assign]
        ShardingPropagator._propagate_tensor_meta_non_cached = infers  # type: ignore[assignment, method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        ShardingPropagator._propagate_tensor_meta_non_cached = self._infer_shape  # type: ignore[method-assign]
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Wrappers (DTensor, float8 weights) hold nothing themselves: what they are made of comes by next.
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented
        # Waiting gives back what it waited for; for fake tensors torch says that it makes a new one.
        waits = func is _WAIT and isinstance(args[0], FakeTensor)
        out = args[0] if waits else func(*args, **(kwargs or {}))
        for tensor in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return out

    def add(self, tensor: Tensor) -> None:
        """Counts the storage of a tensor, unless it is known, on the meta device, or there for its shape only."""
        if self._infers or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        kind: Kind = "backward" if _in_backward() else self._kind
        size_bytes = storage.nbytes()
        self._storages[key] = _Storage(kind, size_bytes, weakref.ref(storage, lambda _: self._drop(key)))
        self._change(kind, size_bytes)

    def _drop(self, key: int) -> None:
        storage = self._storages.pop(key)
        self._change(storage.kind, -storage.size_bytes)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._storages.get(storage._cdata)
        if known is None:
            return
        self._change(known.kind, -known.size_bytes)
        known.kind, known.size_bytes = "gathered", storage.nbytes()
        self._change(known.kind, known.size_bytes)

    def look(self) -> None:
        """Counts what is held now as held at this moment, though nothing changes."""
        self._change(self._kind, 0)

    def _change(self, kind: Kind, difference_bytes: int) -> None:
        self.now_bytes += difference_bytes
        self._kind_bytes[kind] += difference_bytes
        moment: Moment = "backward" if _in_backward() else self.moment
        self.peaks_bytes[moment] = max(self.peaks_bytes.get(moment, 0), self.now_bytes)
        if self.now_bytes > self.peak.total_bytes:
            held = {name: size for name, size in self._kind_bytes.items() if size}
            self.peak = Peak(total_bytes=self.now_bytes, moment=moment, kind_bytes=held)


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
