"""Attention to some keys and to the others is, merged, attention to all."""

from __future__ import annotations

import pytest
import torch

from engine.model.attention import causal
from engine.model.attention_pieces import Cut, attend_to_all


def heads(*counts: int, length: int = 16, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, length, count, 8, generator=random).to(dtype) for count in counts]


CUTS = [Cut(0, count, balanced) for count in (1, 2, 3, 8) for balanced in (True, False)]


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_ranks_hold_every_token_once_and_in_ascending_order(cut: Cut, chunk: int) -> None:
    whole = torch.arange(cut.count * cut.runs * chunk).unsqueeze(0)
    held = [cut.take(whole, place)[0].tolist() for place in range(cut.count)]
    assert sorted(token for tokens in held for token in tokens) == whole[0].tolist()
    assert all(tokens == sorted(tokens) for tokens in held)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_owners_of_chunks_are_those_who_hold_them(cut: Cut) -> None:
    assert [cut.chunks(place)[run] for place, run in cut.owners()] == list(range(cut.count * cut.runs))


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_what_is_seen_of_each_rank_is_all_that_causality_allows(cut: Cut, chunk: int) -> None:
    length = cut.runs * chunk
    whole = torch.arange(cut.count * length).unsqueeze(0)
    for place in range(cut.count):
        mine = Cut(place, cut.count, cut.balanced)
        for source in range(cut.count):
            allowed = mine.take(whole, place)[0].unsqueeze(1) >= mine.take(whole, source)[0]
            seen, pieces = torch.zeros_like(allowed), mine.seen(source, length)
            if pieces is not None:
                seen[pieces.rows :, : pieces.keys] = True
                seen = seen.tril() if pieces.causal else seen
            assert torch.equal(seen, allowed)


def test_balanced_ranks_see_equally_many_keys() -> None:
    pairs = []
    for place in range(4):
        cut, count = Cut(place, 4, True), 0
        for source in range(4):
            seen = cut.seen(source, 16)
            assert seen is not None
            count += 16 * 17 // 2 if seen.causal else (16 - seen.rows) * seen.keys
        pairs.append(count)
    assert pairs == [pairs[0]] * 4


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_ranks_together_are_causal_attention(count: int, balanced: bool, kv_heads: int) -> None:
    whole = [x.requires_grad_() for x in heads(4, kv_heads, kv_heads)]
    pieces = [x.detach().clone().requires_grad_() for x in whole]
    (weights,) = heads(4)
    expected = causal(*whole, None)
    (expected * weights).sum().backward()
    for place in range(count):
        cut = Cut(place, count, balanced)
        own = attend_to_all(cut.take(pieces[0], place), pieces[1], pieces[2], cut)
        torch.testing.assert_close(own, cut.take(expected, place), rtol=1e-5, atol=1e-6)
        (own * cut.take(weights, place)).sum().backward()
    for one, other in zip(pieces, whole, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operation_is_what_it_says_of_itself(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in heads(4, 2, 2, dtype=dtype))
    operation = torch.ops.titan.attend_to_all.default
    found = torch.library.opcheck(operation, (q[:, 8:], k, v, 1, 2, True))
    assert set(found.values()) == {"SUCCESS"}
