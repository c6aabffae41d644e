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

from engine.model.linear import Linear, local
from engine.model.llama import Block, FeedForward

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Own(NamedTuple):
    """Which work is done by kernels of our own; the compiler writes the rest.

    `swiglu` is all between gate and up and the input of the layer behind them, and back; `casts` are transposed casts
    to float8, `scales` those of weights, gradients and attention's output. With `keep` weights are
    transposed in forward as well, and kept in float8 until backward: 1 byte an element.
    """

    swiglu: bool = True
    casts: bool = True
    scales: bool = True
    keep: bool = False


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
    wide = (one.bits.float() / one.scale.by for one in (left, right))
    return torch.mm(next(wide), next(wide).t()).bfloat16()


def _weight(weight_NK: Tensor, own: Own) -> tuple[Scaled, Tensor]:
    """A weight for the product forward, and what is kept of it: itself, or its cast as (K, N)."""
    scale = _scale(weight_NK, E4M3, own)
    if own.keep:
        weight8_NK, weight8_KN = _both(weight_NK, scale, E4M3, own)
        return Scaled(weight8_NK, scale), weight8_KN
    return Scaled(cast(weight_NK, scale, E4M3), scale), weight_NK


def _weight_back(kept: Tensor, scale: Scale, own: Own) -> Scaled:
    return Scaled(kept if own.keep else _turned(kept, scale, E4M3, own), scale)


def _gradient(gradient_RN: Tensor, own: Own) -> tuple[Scaled, Scaled]:
    """The gradient of an output as (R, N) and as (N, R)."""
    gradient_RN = gradient_RN.contiguous()
    scale = _scale(gradient_RN, E5M2, own)
    gradient8_RN, gradient8_NR = _both(gradient_RN, scale, E5M2, own)
    return Scaled(gradient8_RN, scale), Scaled(gradient8_NR, scale)


# ── layers with one input ──


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, normed: bool, own: tuple[bool, ...], *weights_NK: Tensor) -> tuple[Tensor, ...]:
        mine = Own(*own)
        # The largest element of what a norm gives is found while it is computed.
        x_scale = scale_of(x_RK.abs().amax(), E4M3) if normed else _scale(x_RK, E4M3, mine)
        x8_RK, x8_KR = _both(x_RK, x_scale, E4M3, mine)
        outs: list[Tensor] = []
        kept: list[Tensor] = []
        scales: list[Tensor] = []
        for weight_NK in weights_NK:
            weight, to_keep = _weight(weight_NK, mine)
            outs.append(_product(Scaled(x8_RK, x_scale), weight, fast=True))
            kept.append(to_keep)
            scales += weight.scale
        ctx.own = own
        ctx.save_for_backward(x8_KR, *x_scale, *kept, *scales)
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
        return x_gradient_RK, None, None, *weight_gradients


def products(x: Tensor, weights_NK: Sequence[Tensor], own: Own, *, normed: bool) -> list[Tensor]:
    """(..., K) times the transpose of each (N, K); `normed` says that x is what a norm gave."""
    outs = _Products.apply(x.flatten(0, -2), normed, tuple(own), *weights_NK)  # type: ignore[no-untyped-call]
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
        gate_scale, up_scale = (scale_of(one.abs().amax(), E5M2) for one in (d_gate_RF, d_up_RF))
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
    def forward(ctx: Any, x_RD: Tensor, own: tuple[bool, ...], w1_FD: Tensor, w3_FD: Tensor, w2_DF: Tensor) -> Tensor:
        mine = Own(*own)
        x_scale = scale_of(x_RD.abs().amax(), E4M3)
        x8_RD, x8_DR = _both(x_RD, x_scale, E4M3, mine)
        (w1, w1_kept), (w3, w3_kept), (w2, w2_kept) = (_weight(one, mine) for one in (w1_FD, w3_FD, w2_DF))
        gate_RF = _product(Scaled(x8_RD, x_scale), w1, fast=True)
        up_RF = _product(Scaled(x8_RD, x_scale), w3, fast=True)
        h_RF = _swiglu(gate_RF, up_RF, mine)
        ctx.own = own
        ctx.save_for_backward(
            x8_DR, gate_RF, up_RF, w1_kept, w3_kept, w2_kept, *x_scale, *h_RF.scale, *w1.scale, *w3.scale, *w2.scale
        )
        return _product(h_RF, w2, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients_RD: Tensor) -> tuple[Tensor | None, ...]:
        own = Own(*ctx.own)
        x8_DR, gate_RF, up_RF, w1, w3, w2, *scalars = ctx.saved_tensors
        x_scale, h_scale, w1_scale, w3_scale, w2_scale = (Scale(*scalars[at : at + 2]) for at in range(0, 10, 2))
        gradient_RD, gradient_DR = _gradient(gradients_RD[0], own)
        h_gradient_RF = _product(gradient_RD, _weight_back(w2, w2_scale, own), fast=False)
        back = _swiglu_back(h_gradient_RF, gate_RF, up_RF, h_scale, own)
        w2_gradient_DF = _product(gradient_DR, back.h_FR, fast=False)
        from_up_RD = _product(back.up_RF, _weight_back(w3, w3_scale, own), fast=False)
        from_gate_RD = _product(back.gate_RF, _weight_back(w1, w1_scale, own), fast=False)
        w1_gradient_FD = _product(back.gate_FR, Scaled(x8_DR, x_scale), fast=False)
        w3_gradient_FD = _product(back.up_FR, Scaled(x8_DR, x_scale), fast=False)
        return from_up_RD + from_gate_RD, None, w1_gradient_FD, w3_gradient_FD, w2_gradient_DF


def feed_forward(x: Tensor, w1_FD: Tensor, w3_FD: Tensor, w2_DF: Tensor, own: Own) -> Tensor:
    """SwiGLU (arXiv 2002.05202) of (..., D), in and out: w2(silu(w1 x) * w3 x)."""
    out = _FeedForward.apply(x.flatten(0, -2), tuple(own), w1_FD, w3_FD, w2_DF)  # type: ignore[no-untyped-call]
    return out.view(x.shape)  # type: ignore[no-any-return]


# ── a block of them ──


def use(block: Block, own: Own) -> None:
    """Makes a block compute with these functions."""

    def spread(x: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
        return products(x, [local(linear.weight) for linear in linears], own, normed=True)

    def join(x: Tensor, linear: Linear) -> Tensor:
        return products(x, [local(linear.weight)], own, normed=False)[0]

    def forward(part: FeedForward, x_BSD: Tensor) -> Tensor:
        return feed_forward(x_BSD, local(part.w1.weight), local(part.w3.weight), local(part.w2.weight), own)

    block.attention.spread, block.attention.join = spread, join
    block.feed_forward.forward = MethodType(forward, block.feed_forward)  # type: ignore[method-assign]
