"""Causal attention that stays inside each document of a packed sequence.

Knows the mask, and how blocks of it that are empty or full are found without computing it: on CUDA
FlexAttention leaves out the empty ones. It is made once for all layers. Nothing here waits for the device or
depends on how many documents there are. Does not know where documents begin (data/stream.py).
B batch, S queries of this rank, T keys of the whole sequence, Q and K blocks of them, N query heads, K key/value heads.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
"""Queries, or keys, of a block of the mask: the size that FlexAttention's own masks have."""


class Documents(NamedTuple):
    """The documents of a batch, numbered upwards in the natural order of the whole sequence.

    `mask` says which keys the queries of attention may see: blocks for FlexAttention, or true and false
    (B, S, T). None where attention takes it from the numbers.
    """

    numbers_BT: Tensor
    mask: BlockMask | Tensor | None


def documents_of(numbers_BT: Tensor, queries_S: Tensor | None) -> Documents:
    """Numbered documents with the mask of the queries at these positions of the sequence.

    Called outside of what is compiled: on an H200 with torch 2.11, attention compiled in one graph with the making of
    its mask was wrong by 0.8 of the largest value.
    """
    if queries_S is None:
        return Documents(numbers_BT, None)
    mask = block_mask if numbers_BT.device.type == "cuda" else may_see
    return Documents(numbers_BT, mask(numbers_BT, queries_S))


def attend_within_documents(q_BSNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, documents: Documents) -> Tensor:
    """Queries see the keys of their document up to themselves: (B, S, N, H)."""
    q, k, v = (heads.transpose(1, 2) for heads in (q_BSNH, k_BTKH, v_BTKH))
    grouped = shares_keys(q.shape[1], k.shape[1])
    if isinstance(documents.mask, BlockMask):
        out = _flex()(q, k, v, block_mask=documents.mask, enable_gqa=grouped)
    else:
        assert documents.mask is not None, "the mask is for other queries than these"
        out = scaled_dot_product_attention(q, k, v, attn_mask=documents.mask.unsqueeze(1), enable_gqa=grouped)
    return cast(Tensor, out).transpose(1, 2)


def shares_keys(query_heads: int, key_heads: int) -> bool:
    """Whether several query heads have one key head.

    A plain bool, as attention wants it: where one process compiles several models, a comparison of sizes is a symbol.
    """
    if query_heads == key_heads:  # noqa: SIM103 - a branch makes the compiler decide
        return False
    return True


def may_see(documents_BT: Tensor, positions_S: Tensor) -> Tensor:
    """True where a query may see a key, (B, S, T)."""
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    same_BST = documents_BT[:, positions_S].unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BST & (positions_S.unsqueeze(1) >= places_T)


def block_mask(documents_BT: Tensor, positions_S: Tensor) -> BlockMask:
    """The same for FlexAttention, from the first and last document and position of each block.

    Positions ascend and may jump, as those of a rank under context parallel do: a block of queries over a jump
    may be computed in vain, and none is left out.
    """
    queries_BS, length = documents_BT[:, positions_S], documents_BT.shape[1]

    def allowed(batch: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (positions_S[query] >= key) & (queries_BS[batch, query] == documents_BT[batch, key])

    low_BQ, high_BQ, whole_Q = _bounds(queries_BS)
    low_BK, high_BK, whole_K = _bounds(documents_BT)
    early_Q, late_Q, _ = _bounds(positions_S)
    first_K, last_K, _ = _bounds(torch.arange(length, device=documents_BT.device))
    low, high, early, late = (bound.unsqueeze(-1) for bound in (low_BQ, high_BQ, early_Q, late_Q))
    some_BQK = (high >= low_BK.unsqueeze(1)) & (low <= high_BK.unsqueeze(1)) & (late >= first_K)
    one_BQK = (low == high) & (low == low_BK.unsqueeze(1)) & (high == high_BK.unsqueeze(1))
    full_BQK = one_BQK & (early >= last_K) & whole_Q.unsqueeze(-1) & whole_K
    return BlockMask.from_kv_blocks(
        *_listed(some_BQK & ~full_BQK),
        *_listed(full_BQK),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(positions_S.shape[0], length),
    )


def _bounds(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least and greatest of every block along the last dimension, and whether the block is whole."""
    length = x.shape[-1]
    places = torch.arange(-(-length // BLOCK) * BLOCK, device=x.device).view(-1, BLOCK)
    least, greatest = x[..., places.clamp(max=length - 1)].aminmax(dim=-1)
    return least, greatest, places[:, -1] < length


def _listed(wanted_BQK: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and their numbers, those wanted first; one for all heads."""
    marks = wanted_BQK.to(torch.int32)
    numbers = marks.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return marks.sum(-1, dtype=torch.int32).unsqueeze(1), numbers.unsqueeze(1)


def _flex() -> Any:
    # Uncompiled it would compute every score; inside of a compiled block it is compiled with that.
    return flex_attention if torch.compiler.is_compiling() else _compiled_flex()


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)
