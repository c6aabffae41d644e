"""Weights as a rank computes with them, and the two seams at which parallel code takes hold.

Knows that a weight may be a DTensor of which this rank holds a piece, that arithmetic is done on
the piece alone, and what a `product` is: the one place where low precision replaces a matrix
product. Does not know meshes or collectives: tensor parallel replaces `spread` and `join`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from engine import triton_jit
from engine.model import norm_kernel

# Asked once, out of what is compiled: the compiler would trace into the answer.
_HAS_TRITON = triton_jit.installed()

Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(..., K) times the transpose of (N, K): (..., N)."""

Lookup: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Token ids (B, S) and a table (V, D): (B, S, D)."""


def local(weight: Tensor) -> Tensor:
    """The piece of a weight that this rank computes with; the weight itself where it is whole.

    A weight that every tensor rank holds whole meets other tokens or heads on each of them, so
    its gradient there is one term of a sum.
    """
    if not isinstance(weight, DTensor):
        return weight
    placements = [Partial() if where.is_replicate() else where for where in weight.placements]
    piece: Tensor = weight.to_local(grad_placements=placements)
    return piece


class Linear(nn.Linear):
    """A linear layer without bias, computed by `product`."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__(k, n, bias=False)
        self.product: Product = functional.linear

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) in, (..., N) out; N or K of this rank's piece."""
        return self.product(x, local(self.weight))


class Norm(nn.RMSNorm):
    """RMSNorm (arXiv 1910.07467), computed in float32 inside, whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) in and out."""
        weight_D, eps = local(self.weight), self.eps
        if x.is_cuda and eps is not None and _HAS_TRITON:
            return norm_kernel.rms_norm(x, weight_D, eps)
        return functional.rms_norm(x, self.normalized_shape, weight_D, eps)


class Embedding(nn.Embedding):
    """The table of token embeddings, read by `lookup`."""

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__(vocab_size, dim)
        self.lookup: Lookup = functional.embedding

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Ids (B, S) in, (B, S, D) out."""
        return self.lookup(tokens_BS, local(self.weight))


Spread: TypeAlias = Callable[[Tensor, Sequence[Linear]], list[Tensor]]
"""One input through several linear layers side by side."""

Join: TypeAlias = Callable[[Tensor, Linear], Tensor]
"""Heads or hidden units through the layer that leads back to the model's width."""


def spread(x: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
    """The input is whole here: each layer takes it as it is."""
    return [linear(x) for linear in linears]


def join(x: Tensor, linear: Linear) -> Tensor:
    """All heads or hidden units are here: nothing is to be summed."""
    out: Tensor = linear(x)
    return out
