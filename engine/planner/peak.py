"""The fullest moment of a step on one rank, and what the allocator holds for it.

Knows how moments become the fields of a Memory, and the pools of a GPU's allocator. Does not know what stands
in a moment (moments).

Outside of the allocator a process holds more (the CUDA context, NCCL's and cuBLAS's buffers):
0.5 to 2 GiB, which the planner's margin leaves room for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from engine.planner.load import Load, Moment
from engine.planner.memory import Memory, MomentBytes
from engine.planner.moments import Moments

# cuBLAS and cuBLASLt on Hopper, 32 MiB each (aten/src/ATen/cuda/CublasHandlePool.cpp); elsewhere less.
_WORKSPACES_BYTES = 64 << 20

FIRST_BACKWARD = "backward of the first step"
_IN_ORDER = (
    "forward",
    "loss",
    "gradient of the head",
    "backward of a block",
    "gradients of the weights",
    "gradient of the embedding",
    "sum of gradients",
    "optimizer",
)
_BACKWARD = frozenset(_IN_ORDER[1:-1])


@cache
def with_peak(load: Load) -> Memory:
    """Completes what a rank holds all the time by its fullest moments.

    Each field is the most that it comes to; `peak_bytes` is that of one moment, so no more than their sum.
    """
    static, sharding = load.static, load.sharding
    moments = list(Moments(load))
    always = static.params_bytes + static.optimizer_bytes
    fullest = max(moments, key=lambda moment: moment.bytes)
    peak = always + fullest.bytes
    gathering = sharding.gathering_bytes(load.groups)
    pools = max(moment.laid_out_bytes for moment in moments) + gathering
    copied = sharding.copied_bytes(max(load.groups.block, load.groups.embedding, load.groups.head))
    # What copies of the model have summed stands beside its cast.
    uncast = max(0, max(moment.grads_bytes for moment in moments) - static.grads_bytes)
    return replace(
        static,
        activations_bytes=max(moment.activations_bytes for moment in moments),
        logits_bytes=max(moment.logits_bytes for moment in moments),
        communication_bytes=uncast
        + max(moment.communication_bytes + moment.gathering_bytes + moment.update_bytes for moment in moments),
        peak_bytes=peak,
        reserved_bytes=static.static_bytes + uncast + pools + copied + _WORKSPACES_BYTES if load.has_streams else None,
        moment=fullest.name,
        fits=peak <= static.capacity_bytes,
        moments=tuple(_listed(moments, static)),
    )


def _listed(moments: list[Moment], static: Memory) -> Iterator[MomentBytes]:
    """The most of each moment, in the order of a step; last the backward that has no optimizer states beside it."""
    most: dict[str, int] = {}
    for moment in moments:
        most[moment.name] = max(most.get(moment.name, 0), moment.bytes)
    for name in _IN_ORDER:
        if name in most:
            yield MomentBytes(name, static.params_bytes + static.optimizer_bytes + most[name])
    back = max(most[name] for name in _BACKWARD & most.keys())
    yield MomentBytes(FIRST_BACKWARD, static.params_bytes + back)
