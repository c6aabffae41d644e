"""The Llama-shaped decoder (Llama 2, Llama 3, Qwen 3), whole or any contiguous part of it.

Knows the blocks, the ends and their weights' names, which are those of `shapes.part_parameters`.
Does not know ranks, precision or initial values. B batch, S sequence, D width, F hidden width of
the feed-forward, V vocabulary, R half the width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from engine.model.attention import Attention, attention_kernels
from engine.model.rope import table
from engine.shapes import ModelShape


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): w2(silu(w1 x) * w3 x)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.w2 = nn.Linear(shape.ffn_dim, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn_dim, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) in and out."""
        out_BSD: Tensor = self.w2(silu(self.w1(x_BSD)) * self.w3(x_BSD))
        return out_BSD


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each behind a norm and beside a residual.

    `nn.RMSNorm` computes in float32 inside, whatever it is given.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x_BSD: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
        """(B, S, D) in and out; the tables are those of `rope.table`, cut to S."""
        h_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), cos_SR, sin_SR)
        out_BSD: Tensor = h_BSD + self.feed_forward(self.ffn_norm(h_BSD))
        return out_BSD


class Decoder(nn.Module):
    """A part of the model: `layers` in their order, the embedding if `first`, norm and head if `last`.

    Blocks stand in a dictionary by their index in the whole model, so that a weight has the
    same name in every part. Built on the meta device; `rebuild` completes it elsewhere.
    """

    cos_SR: Tensor
    sin_SR: Tensor

    def __init__(self, shape: ModelShape, layers: tuple[int, ...], *, first: bool, last: bool, seq_len: int) -> None:
        super().__init__()
        self.shape = shape
        self.seq_len = seq_len
        self.tok_embeddings = nn.Embedding(shape.vocab_size, shape.dim) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(shape) for layer in layers})
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps) if last else None
        self.output = nn.Linear(shape.dim, shape.vocab_size, bias=False) if last else None
        empty = torch.empty(seq_len, shape.head_dim // 2)
        self.register_buffer("cos_SR", empty, persistent=False)
        self.register_buffer("sin_SR", empty.clone(), persistent=False)
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

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, S) or, without the embedding, (B, S, D) in; logits (B, S, V) or, without the head, (B, S, D)."""
        h_BSD = x if self.tok_embeddings is None else self.tok_embeddings(x)
        cos_SR, sin_SR = self.cos_SR[: h_BSD.shape[1]], self.sin_SR[: h_BSD.shape[1]]
        with attention_kernels(h_BSD.device.type):
            for block in self.layers.values():
                h_BSD = block(h_BSD, cos_SR, sin_SR)
        if self.norm is None or self.output is None:
            return h_BSD
        logits_BSV: Tensor = self.output(self.norm(h_BSD))
        return logits_BSV
