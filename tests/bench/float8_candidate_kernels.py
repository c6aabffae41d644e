"""Triton kernels of `float8_candidate.py`, each as an operator that a compiled graph takes as it is.

Knows casts to float8 in tiles, of which both orders of memory are written in one pass, and SwiGLU forward and backward
around them, and scales, which the last program of a kernel computes. Does not know products.
R rows (tokens), C columns of any matrix, F hidden width of the feed-forward, P pairs of rows, N elements in a row.

Arithmetic is float32, and what torchao would find in bfloat16 (h and the gradients of gate and up) is rounded to
bfloat16 before it is scaled. Nothing is rounded in between, as in what the compiler writes: eager torch rounds
silu(gate) and its gradient as well.
"""

# ruff: noqa: RET505 - Triton compiles only the branch that is taken, where there is an `else`
from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton's interpreter takes no assembly.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


_TYPES = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


class Tile(NamedTuple):
    """Pairs of rows, and columns, of what a program holds, and its warps of 32 threads."""

    pairs: int
    columns: int
    warps: int


class Stretch(NamedTuple):
    """Elements that a program takes at once, its warps, and for how many programs a multiprocessor has room."""

    elements: int
    warps: int
    programs: int = 8


TILES = {"cast": Tile(32, 128, 8), "gradients": Tile(32, 64, 8)}
STRETCHES = {
    "scale": Stretch(4096, 4),
    # A row at once, whatever its width.
    "norm_scale": Stretch(1, 8, 4),
    "swiglu_scale": Stretch(2048, 4),
    "gradients_scales": Stretch(2048, 4),
    "cast_row": Stretch(4096, 4),
    "swiglu_cast": Stretch(2048, 4),
}


# ── pieces of kernels ──


@triton.jit
def _wide(x):  # type: ignore[no-untyped-def]
    """bfloat16 to float32, one instruction an element."""
    if INTERPRETED:
        return x.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 low; shl.b32 low, $2, 16; and.b32 $1, $2, 0xffff0000; mov.b32 $0, low; }",
            "=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-x), to 2 units in the last place: a plain division scales its operands first."""
    one_more = 1.0 + tl.exp2(x * -1.4426950408889634)
    if INTERPRETED:
        return 1.0 / one_more
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [one_more], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _to_bfloat16(x):  # type: ignore[no-untyped-def]
    """float32 rounded to bfloat16, as float32: two conversions at once."""
    if INTERPRETED:
        return x.to(tl.bfloat16).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 both; cvt.rn.bf16x2.f32 both, $3, $2; shl.b32 $0, both, 16; and.b32 $1, both, 0xffff0000; }",
            "=r,=r,r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )


@triton.jit
def _pair(even, odd, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two float32 rounded to float8, side by side in 16 bits, `even` first; too large becomes the largest number."""
    if INTERPRETED:
        low, high = (one.to(dtype).to(tl.uint8, bitcast=True).to(tl.int16) for one in (even, odd))
        return low | (high << 8)
    else:
        kind: tl.constexpr = "e4m3x2" if dtype == tl.float8e4nv else "e5m2x2"
        return tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; cvt.rn.satfinite." + kind + ".f32 low, $3, $1;"
            " cvt.rn.satfinite." + kind + ".f32 high, $4, $2; mov.b32 $0, {low, high}; }",
            "=r,r,r,r,r",
            [even, odd],
            dtype=tl.int16,
            is_pure=True,
            pack=2,
        )


@triton.jit
def _store_turned(out_CP, places, even, odd, inside, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes two rows' scaled values in the other order of memory, as pairs.

    Shared memory turns pieces of 16 bits as they are read, and single bytes only one by one.
    """
    tl.store(out_CP + places, tl.trans(_pair(even, odd, dtype)), inside)


@triton.jit
def _larger(largest, x):  # type: ignore[no-untyped-def]
    """The larger of a magnitude and that of x; NaN where either is."""
    return tl.maximum(largest, tl.abs(x), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _gather(largest, place):  # type: ignore[no-untyped-def]
    """Adds this program's magnitudes, rounded to bfloat16, to the largest of all.

    As integers: the order of float32 that are not negative is theirs, and NaN is the largest. Rounding keeps it.
    """
    bits = tl.max(largest.to(tl.int32, bitcast=True), 0)
    # A NaN may have any sign behind a conversion.
    mine = tl.abs(bits.to(tl.float32, bitcast=True).to(tl.bfloat16).to(tl.float32))
    # The count of finished programs, which follows, is what orders memory.
    tl.atomic_max(place, mine.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def _finish(place, scale, inverse, LIMIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes the scale that follows from the largest magnitude, in float64 as torchao's, and leaves the place empty."""
    largest = tl.atomic_xchg(place, 0).to(tl.float32, bitcast=True).to(tl.float64)
    least = tl.full((), 1e-12, tl.float64)
    found = (tl.full((), LIMIT, tl.float64) / tl.where(largest < least, least, largest)).to(tl.float32)
    tl.store(scale, found)
    tl.store(inverse, tl.div_rn(1.0, found))


@triton.jit
def _gradients(gradient, gate, up):  # type: ignore[no-untyped-def]
    """silu(gate) x up and the gradients of gate and up, in the order of torch's silu_backward; float32."""
    sigmoid = _sigmoid(gate)
    silu = gate * sigmoid
    return silu * up, (gradient * up) * (sigmoid * (1.0 + gate * (1.0 - sigmoid))), gradient * silu


@triton.jit
def _tile(TILE_P: tl.constexpr, TILE_C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs of rows and columns of this program's tile.

    Some tiles below each other, then their neighbours to the right: so lines of the cache fill up in both orders. The
    last rows first: the cache still holds them where a scale was computed just before.
    """
    # Offsets in 64 bits: long sequences of wide models have more than 2^31 elements.
    row_of_tiles = (tl.num_programs(2) - 1 - tl.program_id(2)) * tl.num_programs(0) + tl.program_id(0)
    pair = row_of_tiles.to(tl.int64) * TILE_P + tl.arange(0, TILE_P)
    column = tl.program_id(1).to(tl.int64) * TILE_C + tl.arange(0, TILE_C)
    return pair, column


@triton.jit
def _places(pair, column, pairs, columns):  # type: ignore[no-untyped-def]
    """Places of the even rows of a tile, of pairs in the other order of memory, and what of both is inside."""
    at = pair[:, None] * (2 * columns) + column[None, :]
    turned = column[:, None] * pairs + pair[None, :]
    inside = (pair < pairs)[:, None] & (column < columns)[None, :]
    inside_turned = (column < columns)[:, None] & (pair < pairs)[None, :]
    return at, turned, inside, inside_turned


# ── kernels ──


@triton.jit
def _cast_kernel(  # type: ignore[no-untyped-def]
    x_RC,
    norm_R,
    weight_C,
    scale,
    out_RC,
    out_CP,
    pairs,
    columns,
    DTYPE: tl.constexpr,
    BOTH: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_C: tl.constexpr,
):
    pair, column = _tile(TILE_P, TILE_C)
    at, turned, inside, inside_turned = _places(pair, column, pairs, columns)
    by = tl.load(scale)
    even, odd = tl.load(x_RC + at, inside), tl.load(x_RC + at + columns, inside)
    even, odd = _wide(even), _wide(odd)
    if norm_R is not None:
        weight = tl.load(weight_C + column, column < columns).to(tl.float32)[None, :]
        norm, norm_odd = tl.load(norm_R + 2 * pair, pair < pairs), tl.load(norm_R + 2 * pair + 1, pair < pairs)
        even, odd = _to_bfloat16(even * norm[:, None] * weight), _to_bfloat16(odd * norm_odd[:, None] * weight)
    even, odd = even * by, odd * by
    if BOTH:
        tl.store(out_RC + at, even.to(DTYPE), inside)
        tl.store(out_RC + at + columns, odd.to(DTYPE), inside)
    _store_turned(out_CP, turned, even, odd, inside_turned, DTYPE)


@triton.jit
def _gradients_cast_kernel(  # type: ignore[no-untyped-def]
    gradient_RF,
    gate_RF,
    up_RF,
    gate_scale,
    up_scale,
    h_scale,
    gate8_RF,
    gate8_FP,
    up8_RF,
    up8_FP,
    h8_FP,
    pairs,
    columns,
    DTYPE: tl.constexpr,
    H_DTYPE: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_C: tl.constexpr,
):
    pair, column = _tile(TILE_P, TILE_C)
    at, turned, inside, inside_turned = _places(pair, column, pairs, columns)
    after = at + columns
    gate, gate_odd = tl.load(gate_RF + at, inside), tl.load(gate_RF + after, inside)
    up, up_odd = tl.load(up_RF + at, inside), tl.load(up_RF + after, inside)
    gradient, gradient_odd = tl.load(gradient_RF + at, inside), tl.load(gradient_RF + after, inside)
    by_h, by_up, by_gate = tl.load(h_scale), tl.load(up_scale), tl.load(gate_scale)
    h, d_gate, d_up = _gradients(_wide(gradient), _wide(gate), _wide(up))
    h_odd, d_gate_odd, d_up_odd = _gradients(_wide(gradient_odd), _wide(gate_odd), _wide(up_odd))
    h, h_odd = _to_bfloat16(h) * by_h, _to_bfloat16(h_odd) * by_h
    d_up, d_up_odd = _to_bfloat16(d_up) * by_up, _to_bfloat16(d_up_odd) * by_up
    d_gate, d_gate_odd = _to_bfloat16(d_gate) * by_gate, _to_bfloat16(d_gate_odd) * by_gate
    tl.store(up8_RF + at, d_up.to(DTYPE), inside)
    tl.store(up8_RF + after, d_up_odd.to(DTYPE), inside)
    tl.store(gate8_RF + at, d_gate.to(DTYPE), inside)
    tl.store(gate8_RF + after, d_gate_odd.to(DTYPE), inside)
    _store_turned(h8_FP, turned, h, h_odd, inside_turned, H_DTYPE)
    _store_turned(up8_FP, turned, d_up, d_up_odd, inside_turned, DTYPE)
    _store_turned(gate8_FP, turned, d_gate, d_gate_odd, inside_turned, DTYPE)


@triton.jit
def _last_first(BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Places of this program's elements, the last of all first, as in `_tile`."""
    return (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _cast_row_kernel(x_N, scale, out_N, numel, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = _last_first(BLOCK)
    out = _wide(tl.load(x_N + at, at < numel)) * tl.load(scale)
    tl.store(out_N + at, out.to(out_N.dtype.element_ty), at < numel)


@triton.jit
def _swiglu_cast_kernel(gate_N, up_N, scale, out_N, numel, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = _last_first(BLOCK)
    gate, up = _wide(tl.load(gate_N + at, at < numel)), _wide(tl.load(up_N + at, at < numel))
    h = _to_bfloat16(gate * _sigmoid(gate) * up) * tl.load(scale)
    tl.store(out_N + at, h.to(out_N.dtype.element_ty), at < numel)


@triton.jit
def _scale_kernel(  # type: ignore[no-untyped-def]
    x_N, state, scale, inverse, numel, LIMIT: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr
):
    largest = tl.zeros((BLOCK,), tl.float32)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in tl.range(TURNS):
        largest = _larger(largest, _wide(tl.load(x_N + at, at < numel, 0.0)))
        at += tl.num_programs(0) * BLOCK
    _gather(largest, state + 1)
    if tl.atomic_add(state, 1) == tl.num_programs(0) - 1:
        _finish(state + 1, scale, inverse, LIMIT)
        tl.atomic_xchg(state, 0)


@triton.jit
def _norm_scale_kernel(  # type: ignore[no-untyped-def]
    x_RC,
    weight_C,
    norm_R,
    state,
    scale,
    inverse,
    rows,
    columns,
    eps,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    TURNS: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_C + column, column < columns, 0.0).to(tl.float32)
    largest = tl.zeros((BLOCK,), tl.float32)
    row = tl.program_id(0)
    for _ in tl.range(TURNS):
        x = _wide(tl.load(x_RC + row.to(tl.int64) * columns + column, (column < columns) & (row < rows), 0.0))
        norm = tl.rsqrt(tl.sum(x * x) / columns + eps)
        tl.store(norm_R + row, norm, row < rows)
        largest = _larger(largest, x * norm * weight)
        row += tl.num_programs(0)
    _gather(largest, state + 1)
    if tl.atomic_add(state, 1) == tl.num_programs(0) - 1:
        _finish(state + 1, scale, inverse, LIMIT)
        tl.atomic_xchg(state, 0)


@triton.jit
def _swiglu_scale_kernel(  # type: ignore[no-untyped-def]
    gate_N, up_N, state, scale, inverse, numel, LIMIT: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr
):
    largest = tl.zeros((BLOCK,), tl.float32)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in tl.range(TURNS):
        gate, up = _wide(tl.load(gate_N + at, at < numel, 0.0)), _wide(tl.load(up_N + at, at < numel, 0.0))
        largest = _larger(largest, gate * _sigmoid(gate) * up)
        at += tl.num_programs(0) * BLOCK
    _gather(largest, state + 1)
    if tl.atomic_add(state, 1) == tl.num_programs(0) - 1:
        _finish(state + 1, scale, inverse, LIMIT)
        tl.atomic_xchg(state, 0)


@triton.jit
def _gradients_scales_kernel(  # type: ignore[no-untyped-def]
    gradient_N,
    gate_N,
    up_N,
    state,
    gate_scale,
    gate_inverse,
    up_scale,
    up_inverse,
    numel,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    TURNS: tl.constexpr,
):
    largest_gate, largest_up = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in tl.range(TURNS):
        inside = at < numel
        gate, up = _wide(tl.load(gate_N + at, inside, 0.0)), _wide(tl.load(up_N + at, inside, 0.0))
        _, d_gate, d_up = _gradients(_wide(tl.load(gradient_N + at, inside, 0.0)), gate, up)
        largest_gate, largest_up = _larger(largest_gate, d_gate), _larger(largest_up, d_up)
        at += tl.num_programs(0) * BLOCK
    _gather(largest_gate, state + 1)
    _gather(largest_up, state + 2)
    if tl.atomic_add(state, 1) == tl.num_programs(0) - 1:
        _finish(state + 1, gate_scale, gate_inverse, LIMIT)
        _finish(state + 2, up_scale, up_inverse, LIMIT)
        tl.atomic_xchg(state, 0)


# ── operators ──


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _contiguous(*tensors: Tensor) -> None:
    assert all(one.is_contiguous() for one in tensors), "elements are not one after the other"


def _launch_tiles(kernel: Any, tile: Tile, tensors: tuple[Any, ...], rows: int, columns: int, **how: Any) -> None:
    assert rows % 2 == 0, "rows do not come in pairs"
    pairs = rows // 2
    beside = 8
    grid = (beside, -(-columns // tile.columns), -(-pairs // (tile.pairs * beside)))
    kernel[grid](*tensors, pairs, columns, TILE_P=tile.pairs, TILE_C=tile.columns, num_warps=tile.warps, **how)


@cache
def _state(device: torch.device) -> Tensor:
    """How many programs have found their largest elements, and the largest so far: of one kernel at a time.

    The last program leaves it as it was, so nothing is cleared between kernels; they must be of one stream.
    """
    return torch.zeros(3, dtype=torch.int32, device=device)


def _launch_scales(kernel: Any, stretch: Stretch, given: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """Scale and 1 / scale of each result."""
    _contiguous(*given)
    numel, device = given[0].numel(), given[0].device
    blocks = -(-numel // stretch.elements)
    programs = min(blocks, stretch.programs * _processors(device))
    found = _empty_scales(given[0], 4 if len(given) == 3 else 2)
    sizes = {"BLOCK": stretch.elements, "TURNS": -(-blocks // programs), "LIMIT": torch.finfo(dtype).max}
    kernel[(programs,)](*given, _state(device), *found, numel, **sizes, num_warps=stretch.warps)
    return found


def _empty_scales(like: Tensor, count: int) -> list[Tensor]:
    return [like.new_empty((), dtype=torch.float32) for _ in range(count)]


@torch.library.custom_op("titan_bench::cast_both", mutates_args=())
def cast_both(x_RC: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x times scale in float8, as (R, C) and as (C, R), each in one piece."""
    _contiguous(x_RC)
    out_RC, out_CR = torch.empty_like(x_RC, dtype=dtype), x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)
    tensors = (x_RC, None, None, scale, out_RC, out_CR.view(torch.int16))
    _launch_tiles(_cast_kernel, TILES["cast"], tensors, *x_RC.shape, DTYPE=_TYPES[dtype], BOTH=True)
    return out_RC, out_CR


@cast_both.register_fake
def _(x_RC: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x_RC.new_empty(x_RC.shape, dtype=dtype), x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)


@torch.library.custom_op("titan_bench::cast_row", mutates_args=())
def cast_row(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x times scale in float8, in its own order."""
    _contiguous(x)
    out, numel, stretch = torch.empty_like(x, dtype=dtype), x.numel(), STRETCHES["cast_row"]
    grid = (-(-numel // stretch.elements),)
    _cast_row_kernel[grid](x, scale, out, numel, BLOCK=stretch.elements, num_warps=stretch.warps)
    return out


@cast_row.register_fake
def _(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("titan_bench::cast_normed", mutates_args=())
def cast_normed(
    x_RC: Tensor, norm_R1: Tensor, weight_C: Tensor, scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x, rounded to bfloat16, times scale in float8, as (R, C) and as (C, R)."""
    _contiguous(x_RC, norm_R1, weight_C)
    out_RC, out_CR = torch.empty_like(x_RC, dtype=dtype), x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)
    tensors = (x_RC, norm_R1, weight_C, scale, out_RC, out_CR.view(torch.int16))
    _launch_tiles(_cast_kernel, TILES["cast"], tensors, *x_RC.shape, DTYPE=_TYPES[dtype], BOTH=True)
    return out_RC, out_CR


@cast_normed.register_fake
def _(
    x_RC: Tensor,
    norm_R1: Tensor,  # noqa: ARG001
    weight_C: Tensor,  # noqa: ARG001
    scale: Tensor,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return x_RC.new_empty(x_RC.shape, dtype=dtype), x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)


@torch.library.custom_op("titan_bench::cast_transposed", mutates_args=())
def cast_transposed(x_RC: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x times scale in float8, as (C, R) in one piece."""
    _contiguous(x_RC)
    out_CR = x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)
    tensors = (x_RC, None, None, scale, None, out_CR.view(torch.int16))
    _launch_tiles(_cast_kernel, TILES["cast"], tensors, *x_RC.shape, DTYPE=_TYPES[dtype], BOTH=False)
    return out_CR


@cast_transposed.register_fake
def _(x_RC: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return x_RC.new_empty(x_RC.shape[::-1], dtype=dtype)


@torch.library.custom_op("titan_bench::scale", mutates_args=())
def scale(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scale with which x fills float8, and 1 / scale: scalars, float32."""
    found, inverse = _launch_scales(_scale_kernel, STRETCHES["scale"], (x,), dtype)
    return found, inverse


@scale.register_fake
def _(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    found, inverse = _empty_scales(x, 2)
    return found, inverse


@torch.library.custom_op("titan_bench::norm_scale", mutates_args=())
def norm_scale(x_RC: Tensor, weight_C: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """1 / sqrt(mean(x^2) + eps) of each row (R, 1), float32, the scale of RMSNorm of x, and 1 / scale."""
    _contiguous(x_RC, weight_C)
    rows, columns = x_RC.shape
    stretch, device = STRETCHES["norm_scale"], x_RC.device
    programs = min(rows, stretch.programs * _processors(device))
    norm_R1, (found, inverse) = x_RC.new_empty(rows, 1, dtype=torch.float32), _empty_scales(x_RC, 2)
    sizes = {"BLOCK": 1 << (columns - 1).bit_length(), "TURNS": -(-rows // programs), "LIMIT": torch.finfo(dtype).max}
    tensors = (x_RC, weight_C, norm_R1, _state(device), found, inverse)
    _norm_scale_kernel[(programs,)](*tensors, rows, columns, eps, **sizes, num_warps=stretch.warps)
    return norm_R1, found, inverse


@norm_scale.register_fake
def _(
    x_RC: Tensor,
    weight_C: Tensor,  # noqa: ARG001
    eps: float,  # noqa: ARG001
    dtype: torch.dtype,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    found, inverse = _empty_scales(x_RC, 2)
    return x_RC.new_empty(x_RC.shape[0], 1, dtype=torch.float32), found, inverse


@torch.library.custom_op("titan_bench::swiglu_scale", mutates_args=())
def swiglu_scale(gate_RF: Tensor, up_RF: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scale of silu(gate) x up, rounded to bfloat16, and 1 / scale."""
    found, inverse = _launch_scales(_swiglu_scale_kernel, STRETCHES["swiglu_scale"], (gate_RF, up_RF), dtype)
    return found, inverse


@swiglu_scale.register_fake
def _(gate_RF: Tensor, up_RF: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    found, inverse = _empty_scales(gate_RF, 2)
    return found, inverse


@torch.library.custom_op("titan_bench::swiglu_cast", mutates_args=())
def swiglu_cast(gate_RF: Tensor, up_RF: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """silu(gate) x up, rounded to bfloat16, times scale in float8: (R, F)."""
    _contiguous(gate_RF, up_RF)
    out_RF, numel, stretch = torch.empty_like(gate_RF, dtype=dtype), gate_RF.numel(), STRETCHES["swiglu_cast"]
    grid = (-(-numel // stretch.elements),)
    _swiglu_cast_kernel[grid](gate_RF, up_RF, scale, out_RF, numel, BLOCK=stretch.elements, num_warps=stretch.warps)
    return out_RF


@swiglu_cast.register_fake
def _(gate_RF: Tensor, up_RF: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return gate_RF.new_empty(gate_RF.shape, dtype=dtype)


@torch.library.custom_op("titan_bench::swiglu_gradients_scales", mutates_args=())
def swiglu_gradients_scales(
    gradient_RF: Tensor, gate_RF: Tensor, up_RF: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scale and 1 / scale of the gradient of gate, and those of up; both gradients are rounded to bfloat16."""
    given = (gradient_RF, gate_RF, up_RF)
    gate, gate_inverse, up, up_inverse = _launch_scales(
        _gradients_scales_kernel, STRETCHES["gradients_scales"], given, dtype
    )
    return gate, gate_inverse, up, up_inverse


@swiglu_gradients_scales.register_fake
def _(
    gradient_RF: Tensor,
    gate_RF: Tensor,  # noqa: ARG001
    up_RF: Tensor,  # noqa: ARG001
    dtype: torch.dtype,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gate, gate_inverse, up, up_inverse = _empty_scales(gradient_RF, 4)
    return gate, gate_inverse, up, up_inverse


@torch.library.custom_op("titan_bench::swiglu_gradients_cast", mutates_args=())
def swiglu_gradients_cast(
    gradient_RF: Tensor,
    gate_RF: Tensor,
    up_RF: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    h_scale: Tensor,
    gradient_dtype: torch.dtype,
    h_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of gate (R, F) and (F, R), those of up, and h (F, R), all times their scales in float8."""
    given = (gradient_RF, gate_RF, up_RF)
    _contiguous(*given)
    out = _empty_gradients(gate_RF, gradient_dtype, h_dtype)
    gate8_RF, gate8_FR, up8_RF, up8_FR, h8_FR = out
    turned = [one.view(torch.int16) for one in (gate8_FR, up8_FR, h8_FR)]
    tensors = (*given, gate_scale, up_scale, h_scale, gate8_RF, turned[0], up8_RF, *turned[1:])
    types = {"DTYPE": _TYPES[gradient_dtype], "H_DTYPE": _TYPES[h_dtype]}
    _launch_tiles(_gradients_cast_kernel, TILES["gradients"], tensors, *gate_RF.shape, **types)
    return out


@swiglu_gradients_cast.register_fake
def _(
    gradient_RF: Tensor,  # noqa: ARG001
    gate_RF: Tensor,
    up_RF: Tensor,  # noqa: ARG001
    gate_scale: Tensor,  # noqa: ARG001
    up_scale: Tensor,  # noqa: ARG001
    h_scale: Tensor,  # noqa: ARG001
    gradient_dtype: torch.dtype,
    h_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(gate_RF, gradient_dtype, h_dtype)


def _empty_gradients(
    gate_RF: Tensor, gradient_dtype: torch.dtype, h_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    as_it_is, turned = gate_RF.shape, gate_RF.shape[::-1]
    gate8_RF, up8_RF = (gate_RF.new_empty(as_it_is, dtype=gradient_dtype) for _ in range(2))
    gate8_FR, up8_FR = (gate_RF.new_empty(turned, dtype=gradient_dtype) for _ in range(2))
    return gate8_RF, gate8_FR, up8_RF, up8_FR, gate_RF.new_empty(turned, dtype=h_dtype)
