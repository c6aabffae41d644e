"""Attention inside documents, and the blocks of its mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import pad

import engine.model.documents
import engine.model.llama
from engine.model.attention import causal
from engine.model.documents import BLOCK, Documents, attend_within_documents, block_mask, documents_of, may_see
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.recompute import apply_recompute
from engine.planner.recompute import Recompute
from engine.shapes import FLAVORS

SHAPE = replace(FLAVORS["llama3"]["debugmodel"], dim=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=48)
# Documents of 3 and 5 tokens that fill a sequence of 8.
POSITIONS_BS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
DOCUMENTS_BS = (POSITIONS_BS == 0).cumsum(1)
NATURAL_S = torch.arange(8)


def heads(length: int, keys: int) -> tuple[torch.Tensor, ...]:
    """Queries of 4 heads, keys and values of 2, for two sequences."""
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, *size, 16, generator=random) for size in ((length, 4), (keys, 2), (keys, 2)))


def test_c24_documents_of_3_and_5_tokens_allow_21_pairs() -> None:
    allowed_ST = may_see(DOCUMENTS_BS, NATURAL_S)[0]
    assert int(allowed_ST.sum()) == 21
    assert allowed_ST[3].nonzero().flatten().tolist() == [3]


def test_c24_changing_document_1_changes_no_logit_of_document_2() -> None:
    part = Decoder(SHAPE, (0, 1), first=True, last=True, seq_len=8)
    materialise(part, 0, torch.device("cpu"))
    tokens_BS = torch.arange(8).unsqueeze(0)
    other_BS = tokens_BS.clone()
    other_BS[:, :3] += 100
    with torch.no_grad():
        before, after = (part(tokens, None, POSITIONS_BS) for tokens in (tokens_BS, other_BS))
    assert torch.equal(before[:, 3:], after[:, 3:])
    assert not torch.equal(before[:, :3], after[:, :3])


def test_c24_documents_side_by_side_are_documents_on_their_own() -> None:
    part = Decoder(SHAPE, (0, 1), first=True, last=True, seq_len=8)
    materialise(part, 0, torch.device("cpu"))
    tokens_BS = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        packed = part(tokens_BS, None, POSITIONS_BS)
        for start, end in ((0, 3), (3, 8)):
            torch.testing.assert_close(packed[:, start:end], part(tokens_BS[:, start:end]), rtol=1e-5, atol=1e-5)


def test_one_document_is_plain_causal_attention() -> None:
    q, k, v = heads(8, 8)
    one = documents_of(torch.ones(2, 8, dtype=torch.int64), NATURAL_S)
    torch.testing.assert_close(causal(q, k, v, one), causal(q, k, v, None))


# Sizes that are multiples of a block and not, and positions as ranks hold them under context parallel.
CASES = {
    "whole": (512, torch.arange(512)),
    "odd": (300, torch.arange(300)),
    "early_and_late": (1024, torch.cat((torch.arange(128, 256), torch.arange(768, 896)))),
    "early_and_late_within_a_block": (600, torch.cat((torch.arange(50, 150), torch.arange(450, 550)))),
}


def documents(length: int) -> torch.Tensor:
    """Two sequences: a few documents that begin anywhere, and one long one behind a short one."""
    starts_BS = torch.zeros(2, length, dtype=torch.int64)
    starts_BS[:, 0] = 1
    starts_BS[0, [7, length // 3, length // 3 + 1, length // 2, length - 2]] = 1
    starts_BS[1, 40] = 1
    return starts_BS.cumsum(1)


@pytest.mark.parametrize("case", CASES)
def test_no_block_of_the_mask_is_left_out_and_full_ones_are_full(case: str) -> None:
    length, positions_S = CASES[case]
    documents_BT = documents(length)
    mask = block_mask(documents_BT, positions_S)
    allowed_BST = may_see(documents_BT, positions_S)
    blocks = pad(allowed_BST, (0, -length % BLOCK, 0, -len(positions_S) % BLOCK))
    blocks_BQK = blocks.unflatten(1, (-1, BLOCK)).unflatten(3, (-1, BLOCK)).movedim(3, 2).flatten(3)
    full_BQK = torch.zeros_like(blocks_BQK[..., 0])
    counts, numbers = mask.full_kv_num_blocks, mask.full_kv_indices
    assert counts is not None
    assert numbers is not None
    for batch, row in torch.cartesian_prod(torch.arange(2), torch.arange(full_BQK.shape[1])).tolist():
        full_BQK[batch, row, numbers[batch, 0, row, : counts[batch, 0, row]].long()] = True
    assert torch.equal(full_BQK, blocks_BQK.all(-1))
    visited_BQK = mask.to_dense()[:, 0].bool()
    assert not (blocks_BQK.any(-1) & ~visited_BQK).any()
    # Only where a block of queries jumps may one be visited in vain.
    assert int(visited_BQK.sum()) <= int(blocks_BQK.any(-1).sum()) + (case == "early_and_late_within_a_block")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_way_of_gpus_gives_what_that_of_cpus_does(case: str) -> None:
    length, positions_S = CASES[case]
    q, k, v = heads(len(positions_S), length)
    numbers_BT = documents(length)
    expected = attend_within_documents(q, k, v, documents_of(numbers_BT, positions_S))
    mask = block_mask(numbers_BT, positions_S)
    found = flex_attention(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=mask, enable_gqa=True)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found.transpose(1, 2), expected)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_blocks_compile_once_for_the_masks_of_all_steps_and_layers(
    mode: Literal["none", "selective", "full"], monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 300
    part = Decoder(replace(SHAPE, head_dim=16), (0, 1), first=True, last=True, seq_len=length)
    apply_recompute(part, Recompute(mode=mode))
    materialise(part, 0, torch.device("cpu"))
    tokens_BS = torch.randint(0, SHAPE.vocab_size, (2, length))
    # Documents of other lengths in every step.
    steps = [torch.arange(length).remainder(longest).expand(2, -1) for longest in (300, 70, 201, 7)]
    with torch.no_grad():
        expected = [part(tokens_BS, None, positions_BS) for positions_BS in steps]
        # The way of GPUs, of which CPUs have no backward.
        monkeypatch.setattr(engine.model.documents, "may_see", block_mask)
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        for block in part.layers.values():
            block.forward = torch.compile(block.forward, fullgraph=True, backend=counter)
        found = [part(tokens_BS, None, positions_BS) for positions_BS in steps]
    assert counter.frame_count == 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mask_is_made_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Documents] = []

    def counted(*given: torch.Tensor) -> Documents:
        made.append(documents_of(*given))
        return made[-1]

    monkeypatch.setattr(engine.model.llama, "documents_of", counted)
    part = Decoder(SHAPE, (0, 1), first=True, last=True, seq_len=8)
    materialise(part, 0, torch.device("cpu"))
    part(torch.arange(8).unsqueeze(0), None, POSITIONS_BS)
    assert len(made) == 1


def test_one_process_compiles_models_with_different_heads() -> None:
    attend = torch.compile(causal, fullgraph=True, backend="aot_eager")
    numbers_BT = torch.zeros(1, 8, dtype=torch.int64)
    for queries, keys in ((4, 2), (6, 3), (10, 5), (3, 3)):
        q, k, v = (torch.randn(1, 8, heads, 4) for heads in (queries, keys, keys))
        for documents in (None, documents_of(numbers_BT, NATURAL_S)):
            assert torch.equal(attend(q, k, v, documents), causal(q, k, v, documents))
