"""What kernels of a GPU keep, where those of the CPU keep more.

Fake tensors stand on the CPU, because a build of torch without CUDA cannot differentiate on any other
device. There RMSNorm is a row of operations that leave float32 copies behind; a GPU has one
kernel for it, which keeps its input and a number for each row. Attention keeps the same on both, but for
float32, where keys and values are repeated for every query head. Knows sizes, not values.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from engine.model.attention import Attention, causal
from engine.model.documents import Documents, shares_keys
from engine.model.linear import Norm, local


def keep_as_a_gpu_does(parts: Iterable[nn.Module]) -> None:
    """Gives norms and attention of the parts operations of the right sizes, which keep what a GPU's kernels keep."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, Norm):
                module.forward = MethodType(_norm, module)  # type: ignore[method-assign]
            elif isinstance(module, Attention) and module.core is causal:
                module.core = _causal


def _causal(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, documents: Documents | None) -> Tensor:
    if documents is None and q_BSNH.dtype is torch.float32 and shares_keys(q_BSNH.shape[2], k_BSKH.shape[2]):
        k_BSKH, v_BSKH = (x.repeat_interleave(q_BSNH.shape[2] // x.shape[2], dim=2) for x in (k_BSKH, v_BSKH))
    return causal(q_BSNH, k_BSKH, v_BSKH, documents)


def _norm(norm: Norm, x: Tensor) -> Tensor:
    return cast(Tensor, _FusedNorm.apply(x, local(norm.weight)))  # type: ignore[no-untyped-call]


class _FusedNorm(torch.autograd.Function):
    """(..., D) in and out; a float32 is kept for each of `...`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor) -> Tensor:
        assert weight_D.shape == x.shape[-1:], f"a norm of width {weight_D.shape[0]} is given width {x.shape[-1]}"
        ctx.save_for_backward(x, weight_D, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, weight_D, _rows = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight_D)
