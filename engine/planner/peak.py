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
from math import inf

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
    static = load.static
    moments = list(Moments(load))
    fullest = max(moments, key=lambda moment: moment.bytes)
    one_pool = load.sharding.whole
    peak = static.params_bytes + static.optimizer_bytes + fullest.bytes
    grads_bytes = max(moment.grads_bytes for moment in moments)
    laid_out_bytes = max(moment.laid_out_bytes + one_pool * moment.grads_bytes for moment in moments)
    uncast = _uncast(grads_bytes, static)
    return replace(
        static,
        activations_bytes=max(moment.activations_bytes for moment in moments),
        logits_bytes=max(moment.logits_bytes for moment in moments),
        communication_bytes=uncast
        + max(moment.communication_bytes + moment.gathering_bytes + moment.update_bytes for moment in moments),
        peak_bytes=peak,
        reserved_bytes=_reserved(load, laid_out_bytes, grads_bytes) if load.has_streams else None,
        moment=fullest.name,
        fits=peak <= static.capacity_bytes,
        moments=tuple(_listed(moments, static)),
    )


@cache
def needed_bytes(load: Load, *, enough: float = inf) -> int:
    """`with_peak(load).needed_bytes`, without what only a person reads: a search asks for thousands.

    Where that is more than `enough`, what the first moment needs that takes more.
    """
    static = load.static
    always_bytes = static.params_bytes + static.optimizer_bytes
    peak = laid_out_bytes = grads_bytes = 0
    one_pool = load.sharding.whole
    for _, activations, logits, communication, gathering, update, grads, lost in Moments(load):
        used = activations + logits + communication + update
        bytes_ = used + grads + gathering
        if bytes_ > peak:
            peak = bytes_
            if always_bytes + peak > enough:
                return always_bytes + peak
        laid_out = used + lost + one_pool * grads
        if laid_out > laid_out_bytes:
            laid_out_bytes = laid_out
        if grads > grads_bytes:
            grads_bytes = grads
    reserved = _reserved(load, laid_out_bytes, grads_bytes) if load.has_streams else 0
    return max(static.static_bytes, always_bytes + peak, reserved)


def _reserved(load: Load, laid_out_bytes: int, grads_bytes: int) -> int:
    """What the allocator keeps in the pools of all streams, from the most that moments lay out and sum.

    Without FSDP all is made on one stream: gradients take what activations leave, and are in `laid_out_bytes`.
    """
    sharding, groups, static = load.sharding, load.groups, load.static
    if sharding.whole:
        return static.params_bytes + static.optimizer_bytes + laid_out_bytes + _WORKSPACES_BYTES
    pools = laid_out_bytes + sharding.gathering_bytes(groups)
    copied = sharding.copied_bytes(max(groups.block, groups.embedding, groups.head))
    return static.static_bytes + _uncast(grads_bytes, static) + pools + copied + _WORKSPACES_BYTES


def _uncast(grads_bytes: int, static: Memory) -> int:
    """What copies of the model have summed, where it stands beside its cast."""
    return max(0, grads_bytes - static.grads_bytes)


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
