"""Async tensor parallelism: the seams' communication inside the matrix products beside it.

Knows torch's fused operators, which multiply one rank's piece of the sequence while the next one
travels through memory that the ranks share, and how to count them in a built part. They have
kernels for CUDA, and shapes for the meta device; none for the CPU, nor any that take part in low precision
here. Does not know when this is wanted (planner/overlap.py). torch's private `symm_mem` and
`_c10d_functional` operators stand here, tried on 2.13 and read in 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch

# Defines the operators; nothing else imports it.
import torch.distributed._symmetric_memory
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from engine.model.attention import Attention
from engine.model.linear import Linear, local
from engine.model.llama import Decoder, FeedForward

_fused = torch.ops.symm_mem
_collective = torch.ops._c10d_functional
_SEQUENCE = 1


def apply_async_tensor_parallel(part: Decoder, mesh: DeviceMesh) -> None:
    """Replaces the seams of every block, after tensor parallel and before FSDP; products are plain ones.

    Embedding and head keep theirs: one gather each a step, with no equal product beside it.
    """
    group = mesh.get_group().group_name
    spread, join = partial(_spread, group), partial(_join, group)
    for module in part.modules():
        if isinstance(module, Attention | FeedForward):
            module.spread, module.join = spread, join


def _weight(linear: Linear) -> Tensor:
    assert linear.product is functional.linear, "the fused operators multiply in the precision of the weights"
    return local(linear.weight)


def _spread(group: str, x_BSD: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
    """A piece of the sequence in; the whole one, through this rank's rows of each layer, out."""
    outs = _GatherMultiply.apply(group, x_BSD, *map(_weight, linears))  # type: ignore[no-untyped-call]
    return list(outs)


def _join(group: str, x: Tensor, linear: Linear) -> Tensor:
    """This rank's heads or hidden units through their columns, then summed: its piece of the sequence."""
    return cast(Tensor, _MultiplyScatter.apply(group, x, _weight(linear)))  # type: ignore[no-untyped-call]


def _weight_gradient(gradient_BSN: Tensor, x_BSK: Tensor) -> Tensor:
    return gradient_BSN.flatten(0, 1).t() @ x_BSK.flatten(0, 1)


class _GatherMultiply(torch.autograd.Function):
    """Several products of one gathered input.

    Keeps the piece and gathers it again in backward, behind the product that gives its gradient: the
    whole would be as many times larger as there are ranks, for the time of all layers between.
    """

    @staticmethod
    def forward(ctx: Any, group: str, x_BSD: Tensor, *weights_ND: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(x_BSD, *weights_ND)
        rights_DN = [weight_ND.t() for weight_ND in weights_ND]
        _, outs = _fused.fused_all_gather_matmul(x_BSD, rights_DN, _SEQUENCE, group, return_A=False)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients_BSN: Tensor) -> tuple[Tensor | None, ...]:
        x_BSD, *weights_ND = ctx.saved_tensors
        count = gradients_BSN[0].shape[_SEQUENCE] // x_BSD.shape[_SEQUENCE]
        travelling = _collective.all_gather_into_tensor(x_BSD.contiguous(), count, ctx.group)
        # One product over all layers' outputs, so that their sum is what is scattered.
        gradient_BSN, weight_ND = torch.cat(gradients_BSN, dim=-1), torch.cat(weights_ND)
        gradient_BSD = _fused.fused_matmul_reduce_scatter(gradient_BSN, weight_ND, "sum", _SEQUENCE, ctx.group)
        pieces = _collective.wait_tensor(travelling).view(count, *x_BSD.shape)
        whole_BSD = pieces.transpose(0, 1).flatten(1, 2)
        return None, gradient_BSD, *(_weight_gradient(each_BSN, whole_BSD) for each_BSN in gradients_BSN)


class _MultiplyScatter(torch.autograd.Function):
    """A product whose sum over the ranks is scattered; in backward the gradient is gathered once for both products."""

    @staticmethod
    def forward(ctx: Any, group: str, x_BSK: Tensor, weight_DK: Tensor) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(x_BSK, weight_DK)
        return cast(Tensor, _fused.fused_matmul_reduce_scatter(x_BSK, weight_DK.t(), "sum", _SEQUENCE, group))

    @staticmethod
    def backward(ctx: Any, *gradients_BSD: Tensor) -> tuple[None, Tensor, Tensor]:
        x_BSK, weight_DK = ctx.saved_tensors
        whole_BSD, (gradient_BSK,) = _fused.fused_all_gather_matmul(
            gradients_BSD[0], [weight_DK], _SEQUENCE, ctx.group, return_A=True
        )
        return None, gradient_BSK, _weight_gradient(whole_BSD, x_BSK)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts fused operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += int(func.namespace == "symm_mem")
        return func(*args, **(kwargs or {}))


def count_fused(part: Decoder) -> int:
    """Fused operators in one forward and backward of a part's blocks, found by running their seams.

    The part is on the meta device, split, and neither recomputed nor compiled yet. The attention between two
    seams is left out: it may be split over ranks in ways that need real tensors.
    """
    with _Counting() as counting:
        for module in part.modules():
            if isinstance(module, Attention):
                x_BSD = _piece(module.wq.weight)
                q, k, v = module.spread(x_BSD, (module.wq, module.wk, module.wv))
                _backward(module, x_BSD, (module.join(q, module.wo), k, v))
            elif isinstance(module, FeedForward):
                x_BSD = _piece(module.w1.weight)
                _backward(module, x_BSD, (module(x_BSD),))
    found: int = counting.count
    return found


def _piece(weight_ND: Tensor) -> Tensor:
    """What comes between blocks, of any length."""
    return torch.empty(1, 16, weight_ND.shape[1], dtype=weight_ND.dtype, device="meta", requires_grad=True)


def _backward(module: nn.Module, x_BSD: Tensor, outs: Sequence[Tensor]) -> None:
    """Goes back through the seams, and leaves no gradient behind."""
    weights = [linear.weight for linear in module.modules() if isinstance(linear, Linear)]
    torch.autograd.grad([out.sum() for out in outs], [x_BSD, *weights])
