"""Attention against its definition."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.model.attention import Attention
from engine.model.rope import rotate, table
from engine.shapes import FLAVORS, ModelShape

SHAPE = replace(FLAVORS["llama3"]["debugmodel"], dim=24, n_heads=6, n_kv_heads=2, head_dim=8)
CPU = torch.device("cpu")


def by_definition(attention: Attention, x_BSD: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """softmax(q k / sqrt(H)) v, head by head, with every KV head used by a group of query heads."""
    batch, length, _ = x_BSD.shape
    cos_SR, sin_SR = table(shape, length, CPU)
    q = attention.wq(x_BSD).view(batch, length, shape.n_heads, shape.head_dim)
    k = attention.wk(x_BSD).view(batch, length, shape.n_kv_heads, shape.head_dim)
    v = attention.wv(x_BSD).view(batch, length, shape.n_kv_heads, shape.head_dim)
    q, k = (rotate(norm(heads), cos_SR, sin_SR) for norm, heads in ((attention.q_norm, q), (attention.k_norm, k)))
    group = shape.n_heads // shape.n_kv_heads
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    heads = []
    for head in range(shape.n_heads):
        scores = q[:, :, head] @ k[:, :, head // group].transpose(1, 2) / shape.head_dim**0.5
        heads.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v[:, :, head // group])
    out: torch.Tensor = attention.wo(torch.cat(heads, dim=-1))
    return out


def assert_is_by_definition(shape: ModelShape) -> None:
    torch.manual_seed(0)
    attention = Attention(shape)
    x_BSD = torch.randn(2, 10, shape.dim)
    got = attention(x_BSD, *table(shape, 10, CPU))
    torch.testing.assert_close(got, by_definition(attention, x_BSD, shape), rtol=1e-4, atol=1e-5)


def test_grouped_heads_are_as_defined() -> None:
    assert_is_by_definition(SHAPE)


def test_one_kv_head_for_each_query_head_is_as_defined() -> None:
    assert_is_by_definition(replace(SHAPE, n_kv_heads=6))


def test_normed_queries_and_keys_are_as_defined() -> None:
    assert_is_by_definition(replace(SHAPE, qk_norm=True))


def test_heads_may_be_wider_together_than_the_model() -> None:
    assert_is_by_definition(replace(SHAPE, head_dim=16))


def test_the_future_changes_nothing() -> None:
    attention = Attention(SHAPE)
    x_BSD = torch.randn(1, 10, SHAPE.dim)
    changed = x_BSD.clone()
    changed[:, 6:] = 7.0
    tables = table(SHAPE, 10, CPU)
    torch.testing.assert_close(attention(x_BSD, *tables)[:, :6], attention(changed, *tables)[:, :6])
