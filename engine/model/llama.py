"""The Llama-shaped decoder (Llama 2, Llama 3, Qwen 3), whole or any contiguous part of it.

Knows the blocks, the ends and their weights' names, which are those of `shapes.part_parameters`.
Does not know ranks, precision or initial values. B batch, S sequence, D width, F hidden width of
the feed-forward, V vocabulary, R half the width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from engine.model.attention import Attention, attention_kernels
from engine.model.documents import Documents, documents_of
from engine.model.linear import Embedding, Join, Linear, Norm, Spread, join, local, spread
from engine.model.loss import HeadLoss, cross_entropy_sum, head_loss
from engine.model.rope import table
from engine.shapes import ModelShape

Order: TypeAlias = Callable[[torch.device], Tensor]
"""Gives the natural positions (S,) of the tokens that a rank holds, in the order in which it holds them."""

Queries: TypeAlias = Literal["own", "whole", "pieces"]
"""Which queries attention has at once: those of this rank's tokens, of whole sequences, or some after others."""


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): w2(silu(w1 x) * w3 x)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w1 = Linear(shape.dim, shape.ffn_dim)
        self.w2 = Linear(shape.ffn_dim, shape.dim)
        self.w3 = Linear(shape.dim, shape.ffn_dim)
        self.spread: Spread = spread
        self.join: Join = join

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) in and out."""
        gate_BSF, up_BSF = self.spread(x_BSD, (self.w1, self.w3))
        return self.join(silu(gate_BSF) * up_BSF, self.w2)


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = Norm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = Norm(shape.dim, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x_BSD: Tensor, cos: Tensor, sin: Tensor, documents: Documents | None = None) -> Tensor:
        """(B, S, D) in and out; the tables are rows of `rope.table`, (S, R) or (B, S, R)."""
        h_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), cos, sin, documents)
        out_BSD: Tensor = h_BSD + self.feed_forward(self.ffn_norm(h_BSD))
        return out_BSD


def _as_it_is(h_BSD: Tensor) -> Tensor:
    return h_BSD


class Head(Linear):
    """The output projection, and the loss that is computed with it: so logits need never be whole."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape.dim, shape.vocab_size)
        self.gather: Callable[[Tensor], Tensor] = _as_it_is
        self.loss: HeadLoss = head_loss(product=self.product, cross_entropy=cross_entropy_sum, chunks=1)

    def forward(self, h_BSD: Tensor, labels_BS: Tensor | None = None) -> Tensor:
        """Logits (B, S, V) or, with labels, the sum of their loss: a float32 scalar, not divided."""
        h_BSD, weight_VD = self.gather(h_BSD), local(self.weight)
        return self.product(h_BSD, weight_VD) if labels_BS is None else self.loss(h_BSD, weight_VD, labels_BS)


class Decoder(nn.Module):
    """A part of the model: `layers` in their order, the embedding if `first`, norm and head if `last`.

    Blocks stand in a dictionary by their index in the whole model, so that a weight has the
    same name in every part. Built on the meta device; `rebuild` completes it elsewhere. With an
    `order` this rank holds only those tokens of a sequence, and takes them itself.
    """

    cos_SR: Tensor
    sin_SR: Tensor
    order_S: Tensor

    def __init__(self, shape: ModelShape, layers: tuple[int, ...], *, first: bool, last: bool, seq_len: int) -> None:
        super().__init__()
        self.shape = shape
        self.seq_len = seq_len
        self.order: Order | None = None
        self.queries: Queries = "own"
        # Tensor ranks hold a piece each of a sequence between blocks, and attention sees all of it.
        self.sequence_pieces = 1
        self.tok_embeddings = Embedding(shape.vocab_size, shape.dim) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(shape) for layer in layers})
        self.norm = Norm(shape.dim, eps=shape.norm_eps) if last else None
        self.output = Head(shape) if last else None
        empty = torch.empty(seq_len, shape.head_dim // 2)
        self.register_buffer("cos_SR", empty, persistent=False)
        self.register_buffer("sin_SR", empty.clone(), persistent=False)
        self.register_buffer("order_S", torch.empty(seq_len, dtype=torch.int64), persistent=False)
        self.tie()

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one weight, held by this part."""
        return self.shape.tie_embeddings and self.tok_embeddings is not None and self.output is not None

    def tie(self) -> None:
        """Makes the head use the embedding's weight; `to_empty` takes them apart, so this runs again after it."""
        if self.tied:
            assert self.tok_embeddings is not None
            assert self.output is not None
            self.output.weight = self.tok_embeddings.weight

    def rebuild(self, device: torch.device) -> None:
        """Ties again and fills what is not a weight: the rotary tables, in float32 whatever the weights are."""
        self.tie()
        self.cos_SR, self.sin_SR = table(self.shape, self.seq_len, device)
        self.order_S = torch.arange(self.seq_len, device=device) if self.order is None else self.order(device)

    def forward(self, x: Tensor, labels_BS: Tensor | None = None, positions_BS: Tensor | None = None) -> Tensor:
        """Tokens in, or (B, S, D) without the embedding; out goes (B, S, D), logits (B, S, V), or a loss.

        Tokens (B, S), labels and positions are those of whole sequences, on every rank. With labels,
        a part with the head gives the sum of their loss. Positions start again at 0 at every
        document, and attention stays inside it; None is one document a sequence.
        """
        h_BSD = x if self.tok_embeddings is None else self.tok_embeddings(self._own(x))
        cos, sin, documents = self._places(x, positions_BS)
        with attention_kernels(h_BSD.device.type):
            for block in self.layers.values():
                h_BSD = block(h_BSD, cos, sin, documents)
        if self.norm is None or self.output is None:
            return h_BSD
        out: Tensor = self.output(self.norm(h_BSD), None if labels_BS is None else self._own(labels_BS))
        return out

    def _own(self, whole_BS: Tensor) -> Tensor:
        """The tokens, labels or positions of this rank."""
        return whole_BS if self.order is None else whole_BS[:, self.order_S]

    def _places(self, x: Tensor, positions_BS: Tensor | None) -> tuple[Tensor, Tensor, Documents | None]:
        """Rotary tables of this rank's tokens, and the documents of the whole sequence."""
        if positions_BS is not None:
            own_BS = self._own(positions_BS)
            documents = documents_of((positions_BS == 0).cumsum(1), self.masked(positions_BS))
            return self.cos_SR[own_BS], self.sin_SR[own_BS], documents
        if self.order is not None:
            return self.cos_SR[self.order_S], self.sin_SR[self.order_S], None
        length = x.shape[1] * (1 if self.tok_embeddings is not None else self.sequence_pieces)
        return self.cos_SR[:length], self.sin_SR[:length], None

    def masked(self, positions_BS: Tensor) -> Tensor | None:
        """The places in the sequence of the queries that a mask is made for."""
        if self.queries == "pieces":
            return None
        if self.queries == "own" and self.order is not None:
            return self.order_S
        return torch.arange(positions_BS.shape[1], device=positions_BS.device)
