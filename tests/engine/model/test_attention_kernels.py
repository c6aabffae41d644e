"""Attention of a piece, and its log-sum-exp, against their definition."""

from __future__ import annotations

import pytest
import torch

from engine.model.attention_kernels import attend, attend_gradients

MASKS = ("none", "causal", "barred")


def inputs(kv_heads: int, *, queries: int, keys: int, masks: str) -> tuple[list[torch.Tensor], torch.Tensor, dict]:
    """Heads, which query may see which key, and how that is said."""
    random = torch.Generator().manual_seed(0)
    sizes = ((queries, 4), (keys, kv_heads), (keys, kv_heads))
    heads = [torch.randn(2, *size, 8, generator=random, dtype=torch.float32) for size in sizes]
    allowed = torch.ones(2, queries, keys, dtype=torch.bool)
    if masks == "causal":
        return heads, allowed.tril(), {"causal": True}
    if masks == "barred":
        # Some queries see no key here at all.
        allowed = torch.rand(2, queries, keys, generator=random) > 0.5
        allowed[:, 0], allowed[:, 1] = True, False
        return heads, allowed, {"barred_BST": ~allowed}
    return heads, allowed, {}


def by_definition(heads: list[torch.Tensor], allowed_BST: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k / sqrt(H)) v and the log-sum-exp of the scores, in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in heads)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(~allowed_BST.unsqueeze(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masks", MASKS)
def test_a_piece_is_as_defined(masks: str, kv_heads: int) -> None:
    heads, allowed_BST, said = inputs(kv_heads, queries=6, keys=6, masks=masks)
    out, sums = attend(*heads, **said)
    expected, expected_sums = by_definition(heads, allowed_BST)
    sees = allowed_BST.any(-1)
    torch.testing.assert_close(out[sees].double(), expected[sees], rtol=1e-5, atol=1e-6)
    sums, expected_sums = sums.transpose(1, 2), expected_sums.transpose(1, 2)
    torch.testing.assert_close(sums[sees].double(), expected_sums[sees], rtol=1e-5, atol=1e-6)
    # What sees nothing here weighs nothing beside what it sees elsewhere.
    assert (sums[~sees] < -1e29).all()
    assert out.isfinite().all()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masks", ["none", "barred"])
def test_gradients_of_pieces_add_up_to_those_of_the_whole(masks: str, kv_heads: int) -> None:
    heads, allowed_BST, _ = inputs(kv_heads, queries=5, keys=7, masks=masks)
    allowed_BST[:, :, 0] = True
    of_all = [x.clone().requires_grad_() for x in heads]
    out, sums = by_definition(of_all, allowed_BST)
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(out, of_all, given.double())
    found = [torch.zeros_like(x) for x in heads]
    for keys in (slice(0, 3), slice(3, 7)):
        barred = ~allowed_BST[:, :, keys] if masks == "barred" else None
        piece = (heads[0], heads[1][:, keys], heads[2][:, keys])
        gradients = attend_gradients(given, *piece, out.float(), sums.float(), barred_BST=barred)
        found[0] += gradients[0]
        found[1][:, keys], found[2][:, keys] = gradients[1:]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-6)
