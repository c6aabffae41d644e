"""The training loss: a sum over tokens.

Knows cross entropy and which labels do not count. Does not divide: the one denominator of a
step, over all ranks and accumulation steps, is the loop's.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from engine.data.loader import IGNORE


def cross_entropy_sum(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Sum of the cross entropy (nats) of all labels that are not IGNORE, in float32 whatever the logits are."""
    return cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten(), ignore_index=IGNORE, reduction="sum")
