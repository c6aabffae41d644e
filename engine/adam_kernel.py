"""Adam's whole update in one pass over memory: a kernel of our own for one GPU's part of the weights.

Knows weights, states, gradients and the copies computed with, as plain tensors of one device, and the formula. Does not
know which weights a rank holds nor when the update is tried (optim.py). torch's fused kernel wants gradients in the
precision of weights, stores them anew where they are clipped, and leaves copies to another pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from engine import triton_jit

if TYPE_CHECKING:
    import triton.language as tl
else:
    tl = None  # set by triton_jit


class Launch(NamedTuple):
    """How the work is cut: `block` elements a program, `warps` of 32 threads for each, and what the cache is told."""

    block: int = 1024
    warps: int = 8
    eviction: str = "evict_first"


LAUNCH = Launch()


def available(device: torch.device) -> bool:
    """Whether the kernel runs on `device`: a GPU, with Triton installed beside torch."""
    return device.type == "cuda" and triton_jit.installed()


@torch.no_grad()
def fused_adam(
    *,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    copies: Sequence[Tensor | None],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    divisor: Tensor | None,
    bad: Tensor,
    launch: Launch = LAUNCH,
) -> None:
    """One update of Adam (arXiv 1412.6980, algorithm 1), or AdamW (1711.05101, algorithm 2) where `decoupled`.

    Gradients are divided by `divisor` (float32, one element); where `bad` (float32, one element, 0 or 1) is 1 nothing
    changes. A weight's tensors have its shape, on the current device, each float32 or bfloat16; arithmetic is float32,
    and results are rounded to the nearest even, so that a copy is `weight.to(copy.dtype)`. `steps` (float32, one
    element each, all equal) count the updates. Gradients in another order of memory than the weight's are copied; any
    other tensor like that is an AssertionError. Nothing waits for the device.
    """
    if not weights:
        return
    kernel = _kernel()
    torch._foreach_add_(list(steps), 1.0 - bad)
    bias1, bias2_root = _bias_corrections(steps[0], beta1, beta2)
    # Triton compiles anew for other ints, not for other floats.
    numbers = [float(number) for number in (lr, beta1, beta2, eps, weight_decay)]
    for weight, gradient, exp_avg, exp_avg_sq, copy in zip(
        weights, gradients, exp_avgs, exp_avg_sqs, copies, strict=True
    ):
        numel = weight.numel()
        if not numel:
            continue
        held = (weight, exp_avg, exp_avg_sq) if copy is None else (weight, exp_avg, exp_avg_sq, copy)
        assert gradient.numel() == numel, "a gradient has another size than its weight"
        assert all(one.is_contiguous() and one.numel() == numel for one in held), "a weight is not in one piece"
        kernel[(-(-numel // launch.block),)](
            weight,
            gradient.contiguous(),
            exp_avg,
            exp_avg_sq,
            copy,
            divisor,
            bad,
            bias1,
            bias2_root,
            numel,
            *numbers,
            DECOUPLED=decoupled,
            EVICTION=launch.eviction,
            BLOCK=launch.block,
            num_warps=launch.warps,
        )


def _bias_corrections(step: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """1 - beta1^t, and the square root of 1 - beta2^t.

    Of the betas in float32, in which the means are kept: 1 - float32(0.999) is 1.3e-5 off 0.001. The
    powers are float64: in float32 their own rounding is up to 3e-5 of the early corrections.
    """
    count = step.double()
    bias1, bias2 = (1.0 - torch.pow(c_float(beta).value, count) for beta in (beta1, beta2))
    return bias1.float(), bias2.sqrt().float()


def _kernel() -> Any:
    """The kernel as Triton compiles it, anew for each mix of precisions and alignments; never for other numbers."""
    return triton_jit.compiled(_adam)


def _adam(  # type: ignore[no-untyped-def]
    weight_N,
    gradient_N,
    exp_avg_N,
    exp_avg_sq_N,
    copy_N,
    divisor,
    bad,
    bias1,
    bias2_root,
    numel,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    DECOUPLED: tl.constexpr,
    EVICTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program updates `BLOCK` elements; the order of rounding is that of torch's fused kernel."""
    # Offsets from a start in 64 bits: an embedding may have more than 2^31 elements.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane_B = tl.arange(0, BLOCK)
    inside_B = lane_B < numel - start
    weight = tl.load(weight_N + start + lane_B, mask=inside_B, eviction_policy=EVICTION).to(tl.float32)
    gradient = tl.load(gradient_N + start + lane_B, mask=inside_B, eviction_policy=EVICTION).to(tl.float32)
    exp_avg = tl.load(exp_avg_N + start + lane_B, mask=inside_B, eviction_policy=EVICTION).to(tl.float32)
    exp_avg_sq = tl.load(exp_avg_sq_N + start + lane_B, mask=inside_B, eviction_policy=EVICTION).to(tl.float32)

    if divisor is not None:
        gradient = tl.div_rn(gradient, tl.load(divisor))
    if DECOUPLED:
        weight -= lr * weight_decay * weight
    else:
        gradient += weight * weight_decay
    square = gradient * gradient
    exp_avg = tl.fma(exp_avg, beta1, tl.fma(gradient, -beta1, gradient))
    exp_avg_sq = tl.fma(exp_avg_sq, beta2, tl.fma(square, -beta2, square))
    spread = tl.div_rn(tl.sqrt_rn(exp_avg_sq), tl.load(bias2_root)) + eps
    weight -= tl.div_rn(tl.div_rn(lr, tl.load(bias1)) * exp_avg, spread)

    # Only what is written depends on the gate, so that the loads above do not wait for it.
    writes_B = lane_B < tl.where(tl.load(bad) == 0.0, numel, 0) - start
    tl.store(weight_N + start + lane_B, weight, mask=writes_B, eviction_policy=EVICTION)
    tl.store(exp_avg_N + start + lane_B, exp_avg, mask=writes_B, eviction_policy=EVICTION)
    tl.store(exp_avg_sq_N + start + lane_B, exp_avg_sq, mask=writes_B, eviction_policy=EVICTION)
    if copy_N is not None:
        tl.store(copy_N + start + lane_B, weight, mask=writes_B, eviction_policy=EVICTION)
