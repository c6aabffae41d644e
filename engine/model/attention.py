"""Causal attention with grouped query heads.

Knows its four projections, the norms of query and key that Qwen 3 has, and which kernels are
tried in which order. Does not know how heads or sequence are split over ranks: `spread`, `join`
and `core` are replaced where they are.
B batch, S sequence, D width, N query heads, K key/value heads, H width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from engine.model.documents import Documents, attend_within_documents, shares_keys
from engine.model.linear import Join, Linear, Norm, Spread, join, spread
from engine.model.rope import rotate
from engine.shapes import ModelShape

# Forward and backward of 8,192 tokens with 32/8 heads on an H200: cuDNN 3.6 ms, flash 6.8 ms.
_CUDA_KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]

Core: TypeAlias = Callable[[Tensor, Tensor, Tensor, Documents | None], Tensor]
"""Rotated queries (B, S, N, H), keys and values (B, S, K, H), and the documents of the whole
sequence or None; gives (B, S, N, H)."""


@contextmanager
def attention_kernels(device_type: str) -> Iterator[None]:
    """Within it, attention takes the first kernel that can: on CUDA cuDNN, flash, memory-efficient, plain arithmetic.

    Around the blocks and not inside them, so that a compiled block sees it as a given.
    """
    if device_type == "cuda":
        with sdpa_kernel(_CUDA_KERNELS, set_priority=True):
            yield
    else:
        yield


def causal(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, documents: Documents | None) -> Tensor:
    """Every token attends to itself and those before it in its sequence, or in its document of it."""
    if documents is not None:
        return attend_within_documents(q_BSNH, k_BSKH, v_BSKH, documents)
    grouped = shares_keys(q_BSNH.shape[2], k_BSKH.shape[2])
    if grouped and q_BSNH.dtype is torch.float32 and q_BSNH.is_cuda:
        # Only the memory-efficient kernel takes float32, and it wants as many key heads as query heads; plain
        # arithmetic would keep S x S numbers a head.
        k_BSKH, v_BSKH = (x.repeat_interleave(q_BSNH.shape[2] // x.shape[2], dim=2) for x in (k_BSKH, v_BSKH))
        grouped = False
    out_BNSH = scaled_dot_product_attention(
        q_BSNH.transpose(1, 2),
        k_BSKH.transpose(1, 2),
        v_BSKH.transpose(1, 2),
        is_causal=True,
        enable_gqa=grouped,
    )
    return out_BNSH.transpose(1, 2)


class Attention(nn.Module):
    """Causal self-attention; (B, S, D) in, (B, S, D) out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        q_width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.wq = Linear(shape.dim, q_width)
        self.wk = Linear(shape.dim, kv_width)
        self.wv = Linear(shape.dim, kv_width)
        self.q_norm = Norm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.k_norm = Norm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.wo = Linear(q_width, shape.dim)
        self.spread: Spread = spread
        self.join: Join = join
        self.core: Core = causal

    def forward(self, x_BSD: Tensor, cos: Tensor, sin: Tensor, documents: Documents | None = None) -> Tensor:
        """Attends to this and all earlier positions of the same sequence, or of the same document."""
        # -1 for the heads: tensor parallel leaves a rank only some of them.
        q_BSNH, k_BSKH, v_BSKH = (
            out.view(*out.shape[:-1], -1, self.head_dim) for out in self.spread(x_BSD, (self.wq, self.wk, self.wv))
        )
        q_BSNH, k_BSKH = rotate(self.q_norm(q_BSNH), cos, sin), rotate(self.k_norm(k_BSKH), cos, sin)
        out_BSNH = self.core(q_BSNH, k_BSKH, v_BSKH, documents)
        return self.join(out_BSNH.flatten(2), self.wo)
