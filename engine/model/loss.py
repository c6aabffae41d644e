"""The training loss: a sum over tokens.

Knows cross entropy, which labels do not count, and how the head's product and the loss become one
function, whole or piece by piece. Does not divide: the one denominator of a step, over all ranks and
accumulation steps, is the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from engine.data.batch import IGNORE
from engine.model.linear import Product

CrossEntropy: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, S, V) and labels (B, S): the sum over labels that count, a float32 scalar."""

HeadLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What goes into the head (B, S, D), its weight (V, D) and labels (B, S): the sum of the loss."""


def cross_entropy_sum(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Sum of the cross entropy (nats) of all labels that are not IGNORE, in float32 whatever the logits are."""
    return cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten(), ignore_index=IGNORE, reduction="sum")


def head_loss(*, product: Product, cross_entropy: CrossEntropy, chunks: int) -> HeadLoss:
    """Head and loss as one function; with several chunks, of that many pieces of the sequence in turn."""

    def whole(h_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        return cross_entropy(product(h_BSD, weight_VD), labels_BS)

    return whole if chunks == 1 else PiecewiseLoss(piece=whole, chunks=chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseLoss:
    """Head and loss of one piece of the sequence after another, so that logits of one piece are held at a time.

    Pieces differ in length by one token at most. The gradients of each are computed at once, in
    forward: nothing is multiplied twice, and backward only scales them. So from forward to backward
    it holds the gradient of the head's weight, once for each microbatch in flight.
    """

    piece: HeadLoss
    chunks: int

    def __call__(self, h_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        """The sum of the loss, as the whole head would give it."""
        if torch.is_grad_enabled() and (h_BSD.requires_grad or weight_VD.requires_grad):
            out = _GradientsInForward.apply(h_BSD, weight_VD, labels_BS, self)  # type: ignore[no-untyped-call]
            return cast(Tensor, out)
        pieces = self.cut(h_BSD, labels_BS)
        return torch.stack([self.piece(h_BSD, weight_VD, labels_BS) for h_BSD, labels_BS in pieces]).sum()

    def cut(self, h_BSD: Tensor, labels_BS: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The pieces of the sequence, none of them empty."""
        count = min(self.chunks, labels_BS.shape[1])
        return list(zip(h_BSD.tensor_split(count, 1), labels_BS.tensor_split(count, 1), strict=True))


class _GradientsInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor, loss: PiecewiseLoss) -> Tensor:
        wants_h, wants_weight = ctx.needs_input_grad[:2]
        own_VD = weight_VD.detach().requires_grad_(wants_weight)
        sums: list[Tensor] = []
        gradients_BSD: list[Tensor] = []
        gradient_VD: Tensor | None = None
        for piece_BSD, labels_piece_BS in loss.cut(h_BSD, labels_BS):
            own_BSD = piece_BSD.detach().requires_grad_(wants_h)
            with torch.enable_grad():
                total = loss.piece(own_BSD, own_VD, labels_piece_BS)
            found = list(torch.autograd.grad(total, [own for own in (own_BSD, own_VD) if own.requires_grad]))
            sums.append(total.detach())
            if wants_weight:
                gradient_VD = _add(gradient_VD, found.pop())
            gradients_BSD += found
        ctx.save_for_backward(
            torch.cat(gradients_BSD, 1) if wants_h else None,
            None if gradient_VD is None else gradient_VD.to(weight_VD.dtype),
        )
        return torch.stack(sums).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        h_BSD, weight_VD = ctx.saved_tensors
        # Not in place: a pipeline may run it twice, for what comes before the head and for the weight.
        return (
            None if h_BSD is None else h_BSD * gradient,
            None if weight_VD is None else weight_VD * gradient,
            None,
            None,
        )


def _add(sum_VD: Tensor | None, piece_VD: Tensor) -> Tensor:
    """Adds in float32 at least: a sum of many pieces in bfloat16 would lose what each of them brings."""
    wide = torch.promote_types(piece_VD.dtype, torch.float32)
    return piece_VD.to(wide, copy=True) if sum_VD is None else sum_VD.add_(piece_VD)
