"""What kernels of a GPU keep, where those of the CPU keep more.

Fake tensors stand on the CPU, because a build of torch without CUDA cannot differentiate on any other
device. There RMSNorm is a row of operations that leave float32 copies behind; a GPU has one
kernel for it, which keeps its input and a number for each row. Attention keeps the same on both.
Knows sizes, not values.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from engine.model.linear import Norm, local


def keep_as_a_gpu_does(parts: Iterable[nn.Module]) -> None:
    """Gives every norm of the parts a forward of the right sizes, which keeps what a GPU's kernel keeps."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, Norm):
                module.forward = MethodType(_norm, module)  # type: ignore[method-assign]


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
