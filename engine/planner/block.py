"""The most that one block holds at once, in forward and in backward.

Knows the points at which engine/model and autograd hold most, eager and compiled: what activations
counts as kept, less what backward has used up, and what is made there. Gradients of the block's weights
count here, from the product that makes them to the end of the block; then FSDP takes them (peak). Does not know
other blocks, nor what kernels take for themselves while they run.

What passes: an eager cast to float8 has two float32 copies beside its result (torchao 0.17 and 0.18); where several
sequences are gathered or summed over tensor ranks they are copied once, because their pieces lie between
each other (parallel/tensor.py). The compiler keeps no such float32 copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from engine.planner.activations import (
    FLOAT32,
    Work,
    block_bytes,
    log_sum_bytes,
    norm_bytes,
    selective_bytes,
    source_bytes,
)

LayerMode: TypeAlias = Literal["none", "selective", "full"]
"""What is computed again in a block's backward: nothing, what was cheap, or all of it."""

_EAGER_CAST, _FLOAT8 = 2 * FLOAT32, 1
# x.float(), two halves turned, and both in one (engine/model/rope.py), in forward; their gradients likewise.
_EAGER_ROTATION = 3 * FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPeaks:
    """The most that one block of a microbatch holds, its own input and all that it keeps included.

    `forward_bytes` in forward; `backward_bytes` in backward, with what is computed again and its weights'
    gradients; `put_off_bytes` what stays beside its activations until the backward for the weights, where that
    comes later.
    """

    forward_bytes: int
    backward_bytes: int
    put_off_bytes: int


@cache
def block_peaks(work: Work, mode: LayerMode) -> BlockPeaks:
    """The fullest points of a block whose backward computes `mode` again."""
    again = block_bytes(work)
    back = max(_backward(work, again))
    if mode == "none":
        forward = max(_forward(work, again, keeps=True))
    else:
        stays = selective_bytes(work) - work.stream_bytes - 2 * work.hidden_bytes if mode == "selective" else 0
        forward = max(_forward(work, 2 * work.stream_bytes + stays, keeps=False))
    if mode != "none" and work.float8 is not None:
        # Computing again stops where all that backward wants is there: before the last product, unless that is
        # torchao's function, which keeps its input when it is through.
        back = max(back, *_forward(work, again, keeps=True))
    # Gradients of all results of products and of norms: what weights' gradients need beside what went into them.
    products = 2 * work.hidden_bytes + 2 * work.whole_stream_bytes + work.query_bytes + 2 * work.key_bytes
    put_off = products + 2 * work.stream_bytes
    return BlockPeaks(forward_bytes=forward, backward_bytes=back, put_off_bytes=put_off)


def _forward(work: Work, own: int, *, keeps: bool) -> Iterator[int]:
    """Points of forward; `own` is all that is kept; without `keeps` it is what stays beside the feed-forward.

    Beside it the norm's result, which is the argument of a function that is not through, or else the block's.
    """
    own += work.stream_bytes
    stream, whole, hidden = work.stream_bytes, work.whole_stream_bytes, work.hidden_bytes
    up_weight = _weight(work, hidden)
    down = _product(work, hidden, weight=up_weight, out=whole)
    copies = (2 if work.copies_sequences else 1) * whole + (stream if work.tp > 1 else 0)
    if keeps:
        # The last product and its sum over tensor ranks; all that is kept is there.
        yield own + max(down, copies)
        return
    yield own + 3 * hidden + max(down, copies, 0 if work.compiled else hidden)
    yield own + whole + hidden + _product(work, whole, weight=up_weight, out=hidden)
    yield own + (2 if work.copies_sequences else 1) * whole + stream


def _backward(work: Work, own: int) -> Iterator[int]:
    """Points of backward, in their order; `own` is all that the block keeps; the gradient of its output is there."""
    stream, whole, hidden = work.stream_bytes, work.whole_stream_bytes, work.hidden_bytes
    query, gathered = work.query_bytes, work.whole_stream_bytes if work.tp > 1 else 0
    up_weight, query_weight = _weight(work, hidden), _weight(work, query)
    # A compiled backward gives all gradients at once, whoever waits for each.
    stays = 0 if work.drops_gradients and not work.compiled else 1
    own += stream
    if work.copies_sequences:
        yield own + 2 * whole
    yield own + gathered + _product_gradients(work, given=whole, source=hidden, weight=up_weight)
    # w2's input is used up; its gradient is there, and those of silu's result and of the other factor are made.
    own += stays * up_weight - (0 if work.casts_again else hidden)
    yield own + 3 * hidden
    own -= (3 if not work.compiled else 2) * hidden
    yield own + 2 * hidden + _product_gradients(work, given=hidden, source=whole, weight=up_weight)
    own += stays * up_weight
    yield own + hidden + whole + _product_gradients(work, given=hidden, source=whole, weight=up_weight)
    own += stays * up_weight
    if work.tp > 1:
        yield own + (2 if work.copies_sequences else 1) * whole + stream
    # The feed-forward's norm and what went into its products are used up, and so is one gradient of the stream.
    own -= norm_bytes(work, inputs=1) + source_bytes(work)
    if work.copies_sequences:
        yield own + stream + 2 * whole
    yield own + gathered + _product_gradients(work, given=whole, source=query, weight=query_weight)
    own += stays * query_weight
    keys = 2 * work.attended_key_bytes
    # Gradients of attention's result, of queries, keys and values; those of gathered keys once more, put in order.
    yield own + 2 * query + keys * (2 if work.attended_key_bytes != work.key_bytes else 1)
    own -= 2 * query + keys + log_sum_bytes(work)
    rotation = 0 if work.compiled else query // work.width_bytes * _EAGER_ROTATION
    yield own + query + 2 * work.key_bytes + rotation
    yield own + query + whole + _product_gradients(work, given=query, source=whole, weight=query_weight)


def largest_weight(work: Work) -> int:
    """Elements of the largest weight of a block on a tensor rank."""
    return work.shape.dim * (max(work.hidden_bytes, work.query_bytes) // work.width_bytes // work.tokens)


def _weight(work: Work, out: int) -> int:
    """Bytes of a weight, as it is multiplied, between the model's width and one with `out` bytes of activations."""
    return work.shape.dim * (out // work.tokens)


def _cast(work: Work, size: int) -> int:
    """Bytes that a cast to float8 takes at its fullest, its result included; `size` bytes in compute precision."""
    if work.float8 is None:
        return 0
    return size // work.width_bytes * (_FLOAT8 + (0 if work.compiled else _EAGER_CAST))


def _narrow(work: Work, size: int) -> int:
    """What of a cast stays until the product is done."""
    return 0 if work.float8 is None else size // work.width_bytes * _FLOAT8


def _product(work: Work, source: int, *, weight: int, out: int) -> int:
    """Bytes of a product at its fullest: casts of input and weight, then its result beside them."""
    if work.gathers_float8:
        return max(_cast(work, source), _narrow(work, source) + out)
    both = _narrow(work, source) + _narrow(work, weight)
    return max(_cast(work, source), _narrow(work, source) + _cast(work, weight), both + out)


def _product_gradients(work: Work, *, given: int, source: int, weight: int) -> int:
    """Bytes of a product's backward at its fullest: gradients of its input and weight, and casts for both.

    torchao's function keeps all casts until it is through: the output's gradient for each of the two products, the
    weight's and the input's. `rowwise_with_gw_hp` multiplies the weight's gradient in high precision. The compiler
    frees those of the first product before the second.
    """
    made = source + weight
    if work.float8 is None:
        return made
    narrow_given = _narrow(work, given)
    of_weight = 0 if work.gathers_float8 else _narrow(work, weight)
    first = narrow_given + max(of_weight + source, 0 if work.gathers_float8 else _cast(work, weight))
    if work.float8 == "weight_gradients_high":
        return max(_cast(work, given), first, made + (0 if work.compiled else narrow_given + of_weight))
    before = source + (0 if work.compiled else narrow_given + of_weight)
    return max(
        _cast(work, given),
        first,
        before + _cast(work, given),
        before + narrow_given + _cast(work, source),
        before + narrow_given + _narrow(work, source) + weight,
    )
