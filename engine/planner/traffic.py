"""Bytes that the memory-bound kernels of a microbatch move: norms, rotation, SwiGLU, residuals, loss, casts.

Knows what eager kernels read and write one by one, what the compiler fuses, and what low precision adds. Does not
know seconds (kernels) or products and attention (compute).

One row is one operation of a block; numbers are passes over a tensor, each of as many bytes as an element has.
D is the residual stream, R what is rotated (query and key), F one hidden tensor of the feed-forward.

| operation | forward, eager | compiled | backward, eager | compiled |
| --- | --- | --- | --- | --- |
| two norms | of the implementation | 4 D | of the implementation | 10 D |
| two residual sums | 6 D | 3 D (the first is in the norm) | 6 D | in the norms |
| inputs of several linears: sums of their gradients | | | 9 D | 6 D |
| rotation | of the implementation | 2 R | the same | 2 R |
| silu and product | 5 F | 3 F | 9 F | 5 F |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.planner.activations import FLOAT32, Work
from engine.planner.stack import Stack

Scaling: TypeAlias = Literal["tensorwise", "rowwise", "delayed", "blocks", "emulated"]
"""What shares a scale: a tensor, a row, a tensor (the scale of earlier steps), 32 values; or values are cast back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes moved by elementwise kernels and, apart, by backward of norms, which is slower; and
    how many kernels a block starts in that direction, products and attention among them."""

    bytes: float = 0.0
    norm_gradient_bytes: float = 0.0
    kernels: int = 0


def forward_traffic(work: Work, stack: Stack) -> Moved:
    """One block's forward."""
    stream, hidden, rotated = work.stream_bytes, work.hidden_bytes, _rotated(work)
    if work.compiled or stack.has_fused_kernels:
        return Moved(bytes=7 * stream + (2 + _head_norms(work)) * rotated + 3 * hidden, kernels=30)
    norm = stack.eager_norm_bytes[0] / work.width_bytes
    passes = (2 * norm + 6) * stream + norm * _head_norms(work) * rotated + _gate_passes(stack)[0] * hidden
    return Moved(bytes=passes + _rotation_bytes(work, stack), kernels=40)


def backward_traffic(work: Work, stack: Stack) -> Moved:
    """One block's backward."""
    stream, whole, hidden, rotated = work.stream_bytes, work.whole_stream_bytes, work.hidden_bytes, _rotated(work)
    if work.compiled or stack.has_fused_kernels:
        norms = 10 * stream + 5 * _head_norms(work) * rotated
        return Moved(bytes=6 * whole + 2 * rotated + 5 * hidden, norm_gradient_bytes=norms, kernels=55)
    norm = stack.eager_norm_bytes[1] / work.width_bytes
    normed = norm * (2 * stream + _head_norms(work) * rotated)
    sums = 0 if stack.has_gpt_blocks else 9
    passes = normed + 6 * stream + sums * whole + _gate_passes(stack)[1] * hidden
    return Moved(bytes=passes + _rotation_bytes(work, stack), kernels=75)


def loss_traffic(work: Work, stack: Stack) -> tuple[float, float]:
    """Bytes of the cross entropy, forward and backward, and of sums over its pieces.

    Eager: logits to float32, log-softmax, its gradient in three steps, and back: 7.0 and 6.8 ms for 8,192 tokens of
    128,256 on an H200, casts at half rate. Compiled: logits are read a little more than once in each
    direction, and their gradient written. In pieces the head's gradient is summed in float32.
    """
    columns = -(-work.shape.vocab_size // (work.tp if work.loss_parallel else 1))
    elements, width = work.tokens * columns, work.width_bytes
    if work.compiled_loss or stack.has_fused_loss:
        forward, backward = 2.6 * width, 2.6 * width
    else:
        forward, backward = 6 * FLOAT32 + 1.5 * width, 5.75 * FLOAT32 + 1.5 * width
    weight = columns * work.shape.dim
    sums = 0 if work.loss_chunks == 1 else work.loss_chunks * weight * (width + 2 * FLOAT32)
    return elements * forward, elements * backward + sums


def cast_bytes(rows: int, columns: int, *, layouts: int, scaling: Scaling, compiled: bool) -> float:
    """Bytes of casting one bfloat16 tensor for float8 products, in one memory layout or in two.

    Tensorwise: read for the largest element, then read and written once a layout. Rowwise: rows at one pass, the other
    layout has its scales along columns, and takes as long as 18 bytes an element do (8 of them where nothing
    else is in the kernel). Delayed scales (Transformer Engine) are known before: one pass. Eager casts
    make float32 copies: 1.23 ms for 117 million elements on an H200.
    """
    elements = rows * columns
    if scaling == "delayed":
        return elements * (2 + layouts)
    if not compiled:
        return elements * 42 * layouts
    if scaling == "rowwise":
        return elements * (4 if layouts == 1 else 22)
    if scaling == "blocks":
        return elements * 4 * layouts
    if scaling == "emulated":
        return elements * 10 * layouts
    return elements * (2 + 3 * layouts)


def _gate_passes(stack: Stack) -> tuple[float, float]:
    """Passes over F in forward and backward: of silu and product, or of GELU over half as much again."""
    return (3.0, 4.5) if stack.has_gpt_blocks else (5.0, 9.0)


def _rotated(work: Work) -> int:
    return work.query_bytes + work.key_bytes


def _head_norms(work: Work) -> int:
    return int(work.shape.qk_norm)


def _rotation_bytes(work: Work, stack: Stack) -> float:
    """Eager rotation reads and writes float32 copies, however wide the elements are."""
    return _rotated(work) / work.width_bytes * stack.eager_rotation_bytes
