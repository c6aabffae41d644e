"""The training loss: a sum over tokens.

Knows cross entropy, which labels do not count, and how the head's product and the loss become one
function. Does not divide: the one denominator of a step, over all ranks and accumulation steps, is
the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import cross_entropy

from engine.data.loader import IGNORE
from engine.model.linear import Product

CrossEntropy: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, S, V) and labels (B, S): the sum over labels that count, a float32 scalar."""

HeadLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What goes into the head (B, S, D), its weight (V, D) and labels (B, S): the sum of the loss."""


def cross_entropy_sum(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Sum of the cross entropy (nats) of all labels that are not IGNORE, in float32 whatever the logits are."""
    return cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten(), ignore_index=IGNORE, reduction="sum")


def head_loss(*, product: Product, cross_entropy: CrossEntropy, chunks: int) -> HeadLoss:
    """Head and loss as one function."""
    assert chunks == 1, "chunks are not built yet"

    def whole(h_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        return cross_entropy(product(h_BSD, weight_VD), labels_BS)

    return whole
