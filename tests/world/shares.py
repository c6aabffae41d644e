"""What ranks hold of a tensor, for tests: a DTensor where they share it, a plain one where they do not."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

from engine.build import Built


def gathered(tensor: Tensor) -> Tensor:
    """All of it; every rank of its mesh asks at once."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def mine(tensor: Tensor) -> Tensor:
    """What this rank holds of it; the same memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def gradients_of(built: Built) -> dict[str, Tensor]:
    """The gradient of every weight, by its name, placed as the weight is."""
    return dict(zip(built.weights, built.gradients, strict=True))
