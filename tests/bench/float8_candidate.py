"""A block of Llama whose float8 products share casts and scales: what `bench_block.py` times beside the engine's own.

Knows linear layers with one input (queries, keys and values), and the whole feed-forward, each as one function of
autograd. An input is cast once, in both orders of memory, and kept for backward in the one that the gradient of the
weight reads (1 byte an element, for 2 of bfloat16); no scale is computed twice. Values, scales and products are those
of torchao's tensorwise recipe: e4m3 forward, e5m2 for gradients, fast accumulation forward only. Does not know how
kernels cut their work (float8_candidate_kernels.py). torch's private `_scaled_mm` stands here.
R rows (tokens), K and N widths of a product, D width of the model, F hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, NamedTuple

import float8_candidate_kernels as kernels
import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.model.linear import Linear, Norm, local
from engine.model.llama import Block, FeedForward
from engine.model.norm_kernel import rms_norm_gradients

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Own(NamedTuple):
    """Which work is done by kernels of our own; the compiler writes the rest.

    `swiglu` is all between gate and up and the input of the layer behind them, and back; `casts` are casts
    to float8, `scales` those of weights, gradients and attention's output. With `norms` layers behind a norm
    compute it, twice: for the scale, and where they cast; what it gives is never in memory. With `keep` weights are
    transposed in forward as well, and kept in float8 until backward: 1 byte an element.
    """

    swiglu: bool = True
    casts: bool = True
    scales: bool = True
    norms: bool = False
    keep: bool = False


class Normed(NamedTuple):
    """The norm in front of layers: its weight, and what is added to the mean square."""

    weight_D: Tensor
    eps: float


class Scale(NamedTuple):
    """What a matrix is multiplied by before it is cast, and 1 divided by that: scalars, float32."""

    by: Tensor
    inverse: Tensor


class Scaled(NamedTuple):
    """A matrix in float8 and its scale."""

    bits: Tensor
    scale: Scale


# ── scales and casts ──


def scale_of(largest: Tensor, dtype: torch.dtype) -> Scale:
    """The scale of a tensor with this largest magnitude, as torchao computes it: of float64."""
    by = (torch.finfo(dtype).max / largest.double().clamp(min=1e-12)).float()
    return Scale(by, by.reciprocal())


def cast(x: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    """x times scale in float8; what is too large becomes the largest number."""
    limit = torch.finfo(dtype).max
    return (x.float() * scale.by).clamp(-limit, limit).to(dtype)


def _scale(x: Tensor, dtype: torch.dtype, own: Own) -> Scale:
    return Scale(*kernels.scale(x, dtype)) if own.scales else scale_of(x.abs().amax(), dtype)


def _both(x_RC: Tensor, scale: Scale, dtype: torch.dtype, own: Own) -> tuple[Tensor, Tensor]:
    """Cast as (R, C) and as (C, R)."""
    if own.casts:
        out_RC, out_CR = kernels.cast_both(x_RC, scale.by, dtype)
        return out_RC, out_CR
    out_RC = cast(x_RC, scale, dtype)
    return out_RC, out_RC.t().contiguous()


def _turned(x_RC: Tensor, scale: Scale, dtype: torch.dtype, own: Own) -> Tensor:
    """Cast as (C, R)."""
    return kernels.cast_transposed(x_RC, scale.by, dtype) if own.casts else cast(x_RC, scale, dtype).t().contiguous()


def _product(left: Scaled, right: Scaled, *, fast: bool) -> Tensor:
    """(A, B) times the transpose of (C, B): (A, C), bfloat16."""
    if left.bits.is_cuda:
        return torch._scaled_mm(
            left.bits,
            right.bits.t(),
            scale_a=left.scale.inverse,
            scale_b=right.scale.inverse,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )
    # Without such a kernel as torchao emulates it.
    wide, other = left.bits.float() / left.scale.by, right.bits.float() / right.scale.by
    return torch.mm(wide, other.t()).bfloat16()


def _weight(weight_NK: Tensor, own: Own) -> tuple[Scaled, Tensor]:
    """A weight for the product forward, and what is kept of it: itself, or its cast as (K, N)."""
    scale = _scale(weight_NK, E4M3, own)
    if own.keep:
        weight8_NK, weight8_KN = _both(weight_NK, scale, E4M3, own)
        return Scaled(weight8_NK, scale), weight8_KN
    weight8_NK = kernels.cast_row(weight_NK, scale.by, E4M3) if own.casts else cast(weight_NK, scale, E4M3)
    return Scaled(weight8_NK, scale), weight_NK


def _weight_back(kept: Tensor, scale: Scale, own: Own) -> Scaled:
    return Scaled(kept if own.keep else _turned(kept, scale, E4M3, own), scale)


def _gradient(gradient_RN: Tensor, own: Own) -> tuple[Scaled, Scaled]:
    """The gradient of an output as (R, N) and as (N, R)."""
    gradient_RN = gradient_RN.contiguous()
    scale = _scale(gradient_RN, E5M2, own)
    gradient8_RN, gradient8_NR = _both(gradient_RN, scale, E5M2, own)
    return Scaled(gradient8_RN, scale), Scaled(gradient8_NR, scale)


# ── what layers read ──


class _Input(NamedTuple):
    """An input in float8 as (R, K) and as (K, R), and 1 / root mean square of its rows where a norm is computed."""

    row: Scaled
    column: Scaled
    norm_R1: Tensor | None


def _input(x_RK: Tensor, weight_K: Tensor | None, eps: float, own: Own, *, behind_norm: bool) -> _Input:
    norm_R1: Tensor | None = None
    if weight_K is not None:
        norm_R1, by, inverse = kernels.norm_scale(x_RK, weight_K, eps, E4M3)
        scale = Scale(by, inverse)
        x8_RK, x8_KR = kernels.cast_normed(x_RK, norm_R1, weight_K, scale.by, E4M3)
    else:
        # The largest element of what a norm gives is found by the compiler while that is computed.
        scale = scale_of(x_RK.abs().amax(), E4M3) if behind_norm else _scale(x_RK, E4M3, own)
        x8_RK, x8_KR = _both(x_RK, scale, E4M3, own)
    return _Input(Scaled(x8_RK, scale), Scaled(x8_KR, scale), norm_R1)


def _input_back(gradient_RK: Tensor, rest: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the norm's weight from that of what layers read; `rest`: x, weight and norm, or nothing."""
    if not rest:
        return gradient_RK, None
    x_RK, weight_K, norm_R1 = rest
    x_gradient_RK, weight_gradient_K = rms_norm_gradients(gradient_RK, x_RK, weight_K, norm_R1)
    return x_gradient_RK, weight_gradient_K


# ── layers with one input ──


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_RK: Tensor,
        norm_K: Tensor | None,
        eps: float,
        behind_norm: bool,
        own: tuple[bool, ...],
        *weights_NK: Tensor,
    ) -> tuple[Tensor, ...]:
        mine = Own(*own)
        x = _input(x_RK, norm_K, eps, mine, behind_norm=behind_norm)
        outs: list[Tensor] = []
        kept: list[Tensor] = []
        scales: list[Tensor] = []
        for weight_NK in weights_NK:
            weight, to_keep = _weight(weight_NK, mine)
            outs.append(_product(x.row, weight, fast=True))
            kept.append(to_keep)
            scales += weight.scale
        ctx.own = own
        normed = () if norm_K is None else (x_RK, norm_K, x.norm_R1)
        ctx.save_for_backward(x.column.bits, *x.column.scale, *kept, *scales, *normed)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients_RN: Tensor) -> tuple[Tensor | None, ...]:
        own = Own(*ctx.own)
        x8_KR, by, inverse, *rest = ctx.saved_tensors
        x_KR, count = Scaled(x8_KR, Scale(by, inverse)), len(gradients_RN)
        kept, scales = rest[:count], [Scale(*rest[at : at + 2]) for at in range(count, 3 * count, 2)]
        x_gradient_RK: Tensor | None = None
        weight_gradients: list[Tensor] = []
        # The last layer first, as autograd does: sums of bfloat16 are rounded in that order.
        for at in reversed(range(count)):
            gradient_RN, gradient_NR = _gradient(gradients_RN[at], own)
            term_RK = _product(gradient_RN, _weight_back(kept[at], scales[at], own), fast=False)
            x_gradient_RK = term_RK if x_gradient_RK is None else x_gradient_RK + term_RK
            weight_gradients.insert(0, _product(gradient_NR, x_KR, fast=False))
        assert x_gradient_RK is not None, "no layer reads the input"
        return *_input_back(x_gradient_RK, rest[3 * count :]), None, None, None, *weight_gradients


def products(x: Tensor, weights_NK: Sequence[Tensor], own: Own, *, norm: Normed | None) -> list[Tensor]:
    """(..., K) times the transpose of each (N, K); with a `norm` x is what goes into it, or comes out of it.

    It goes in with `own.norms`, else it comes out.
    """
    weight_K, eps = (norm.weight_D, norm.eps) if norm is not None and own.norms else (None, 0.0)
    outs = _Products.apply(  # type: ignore[no-untyped-call]
        x.flatten(0, -2), weight_K, eps, norm is not None, tuple(own), *weights_NK
    )
    return [out_RN.view(*x.shape[:-1], -1) for out_RN in outs]


# ── the feed-forward ──


def _swiglu(gate_RF: Tensor, up_RF: Tensor, own: Own) -> Scaled:
    """silu(gate) x up, rounded to bfloat16 once, in float8."""
    if own.swiglu:
        scale = Scale(*kernels.swiglu_scale(gate_RF, up_RF, E4M3))
        return Scaled(kernels.swiglu_cast(gate_RF, up_RF, scale.by, E4M3), scale)
    h_RF = (silu(gate_RF.float()) * up_RF.float()).bfloat16()
    scale = scale_of(h_RF.abs().amax(), E4M3)
    return Scaled(cast(h_RF, scale, E4M3), scale)


class _Back(NamedTuple):
    gate_RF: Scaled
    gate_FR: Scaled
    up_RF: Scaled
    up_FR: Scaled
    h_FR: Scaled


def _swiglu_back(gradient_RF: Tensor, gate_RF: Tensor, up_RF: Tensor, h_scale: Scale, own: Own) -> _Back:
    """Gradients of gate and up in both orders, and again the input of the last layer, for its weight's gradient."""
    if own.swiglu:
        scales = kernels.swiglu_gradients_scales(gradient_RF, gate_RF, up_RF, E5M2)
        gate_scale, up_scale = Scale(*scales[:2]), Scale(*scales[2:])
        gate8_RF, gate8_FR, up8_RF, up8_FR, h8_FR = kernels.swiglu_gradients_cast(
            gradient_RF, gate_RF, up_RF, gate_scale.by, up_scale.by, h_scale.by, E5M2, E4M3
        )
    else:
        gradient, gate, up = gradient_RF.float(), gate_RF.float(), up_RF.float()
        sigmoid = gate.sigmoid()
        d_gate_RF = (gradient * up * (sigmoid * (1.0 + gate * (1.0 - sigmoid)))).bfloat16()
        d_up_RF = (gradient * (gate * sigmoid)).bfloat16()
        gate_scale, up_scale = [scale_of(one.abs().amax(), E5M2) for one in (d_gate_RF, d_up_RF)]
        gate8_RF, gate8_FR = _both(d_gate_RF, gate_scale, E5M2, own)
        up8_RF, up8_FR = _both(d_up_RF, up_scale, E5M2, own)
        h8_FR = _turned((gate * sigmoid * up).bfloat16(), h_scale, E4M3, own)
    return _Back(
        Scaled(gate8_RF, gate_scale),
        Scaled(gate8_FR, gate_scale),
        Scaled(up8_RF, up_scale),
        Scaled(up8_FR, up_scale),
        Scaled(h8_FR, h_scale),
    )


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        norm_D: Tensor | None,
        eps: float,
        own: tuple[bool, ...],
        w1_FD: Tensor,
        w3_FD: Tensor,
        w2_DF: Tensor,
    ) -> Tensor:
        mine = Own(*own)
        x = _input(x_RD, norm_D, eps, mine, behind_norm=True)
        (w1, w1_kept), (w3, w3_kept), (w2, w2_kept) = [_weight(one, mine) for one in (w1_FD, w3_FD, w2_DF)]
        gate_RF = _product(x.row, w1, fast=True)
        up_RF = _product(x.row, w3, fast=True)
        h_RF = _swiglu(gate_RF, up_RF, mine)
        ctx.own = own
        scalars = (*x.column.scale, *h_RF.scale, *w1.scale, *w3.scale, *w2.scale)
        normed = () if norm_D is None else (x_RD, norm_D, x.norm_R1)
        ctx.save_for_backward(x.column.bits, gate_RF, up_RF, w1_kept, w3_kept, w2_kept, *scalars, *normed)
        return _product(h_RF, w2, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients_RD: Tensor) -> tuple[Tensor | None, ...]:
        own = Own(*ctx.own)
        x8_DR, gate_RF, up_RF, w1, w3, w2, *rest = ctx.saved_tensors
        x_scale, h_scale, w1_scale, w3_scale, w2_scale = [Scale(*rest[at : at + 2]) for at in range(0, 10, 2)]
        x_DR = Scaled(x8_DR, x_scale)
        gradient_RD, gradient_DR = _gradient(gradients_RD[0], own)
        h_gradient_RF = _product(gradient_RD, _weight_back(w2, w2_scale, own), fast=False)
        back = _swiglu_back(h_gradient_RF, gate_RF, up_RF, h_scale, own)
        w2_gradient_DF = _product(gradient_DR, back.h_FR, fast=False)
        from_up_RD = _product(back.up_RF, _weight_back(w3, w3_scale, own), fast=False)
        from_gate_RD = _product(back.gate_RF, _weight_back(w1, w1_scale, own), fast=False)
        w1_gradient_FD = _product(back.gate_FR, x_DR, fast=False)
        w3_gradient_FD = _product(back.up_FR, x_DR, fast=False)
        into_x = _input_back(from_up_RD + from_gate_RD, rest[10:])
        return *into_x, None, None, w1_gradient_FD, w3_gradient_FD, w2_gradient_DF


def feed_forward(x: Tensor, weights: tuple[Tensor, Tensor, Tensor], own: Own, norm: Normed) -> Tensor:
    """SwiGLU (arXiv 2002.05202) of (..., D), in and out: w2(silu(w1 x) * w3 x), for `weights` w1, w3 and w2.

    With `own.norms` x is what goes into the norm, else what comes out of it.
    """
    weight_D, eps = (norm.weight_D, norm.eps) if own.norms else (None, 0.0)
    out = _FeedForward.apply(x.flatten(0, -2), weight_D, eps, tuple(own), *weights)  # type: ignore[no-untyped-call]
    return out.view(x.shape)  # type: ignore[no-any-return]


# ── a block of them ──


def _normed(norm: Norm) -> Normed:
    assert norm.eps is not None, "a norm has no epsilon"
    return Normed(local(norm.weight), norm.eps)


def _as_it_is(norm: Norm, x: Tensor) -> Tensor:  # noqa: ARG001
    return x


def use(block: Block, own: Own) -> None:
    """Makes a block compute with these functions."""
    attention_norm, ffn_norm = block.attention_norm, block.ffn_norm

    def spread(x: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
        return products(x, [local(linear.weight) for linear in linears], own, norm=_normed(attention_norm))

    def join(x: Tensor, linear: Linear) -> Tensor:
        return products(x, [local(linear.weight)], own, norm=None)[0]

    def forward(part: FeedForward, x_BSD: Tensor) -> Tensor:
        weights = (local(part.w1.weight), local(part.w3.weight), local(part.w2.weight))
        return feed_forward(x_BSD, weights, own, _normed(ffn_norm))

    block.attention.spread, block.attention.join = spread, join
    block.feed_forward.forward = MethodType(forward, block.feed_forward)  # type: ignore[method-assign]
    if own.norms:
        for norm in (attention_norm, ffn_norm):
            norm.forward = MethodType(_as_it_is, norm)  # type: ignore[method-assign]
