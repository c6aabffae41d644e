"""Initial weights depend on seed and name, and on nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.model.initial import BLOCK_ROWS, materialise
from engine.model.llama import Decoder
from engine.shapes import FLAVORS

SHAPE = replace(FLAVORS["llama3"]["debugmodel"], n_layers=4, ffn_dim=3 * BLOCK_ROWS + 5)


def weights(
    layers: tuple[int, ...], *, first: bool, last: bool, seed: int = 0, dtype: str = "float32"
) -> dict[str, torch.Tensor]:
    """Weights of a part."""
    with torch.device("meta"):
        part = Decoder(SHAPE, layers, first=first, last=last, seq_len=8).to(getattr(torch, dtype))
    materialise(part, seed, torch.device("cpu"))
    return dict(part.named_parameters())


WHOLE = weights((0, 1, 2, 3), first=True, last=True)


def test_a_part_has_the_weights_of_the_whole() -> None:
    part = weights((2, 3), first=False, last=True)
    assert all(torch.equal(weight, WHOLE[name]) for name, weight in part.items())


def test_c15_weights_that_allocation_takes_apart_are_tied_again() -> None:
    with torch.device("meta"):
        part = Decoder(replace(SHAPE, tie_embeddings=True), (0,), first=True, last=True, seq_len=8)
    materialise(part, 0, torch.device("cpu"))
    assert part.output is not None
    assert part.tok_embeddings is not None
    assert part.output.weight is part.tok_embeddings.weight


def test_c29_layers_differ() -> None:
    for name in ("attention.wq.weight", "feed_forward.w2.weight"):
        assert not torch.equal(WHOLE[f"layers.0.{name}"], WHOLE[f"layers.1.{name}"])


def test_blocks_of_rows_differ() -> None:
    rows = WHOLE["output.weight"]
    assert not torch.equal(rows[:BLOCK_ROWS], rows[BLOCK_ROWS : 2 * BLOCK_ROWS])


def test_another_seed_gives_other_weights() -> None:
    other = weights((0, 1, 2, 3), first=True, last=True, seed=1)
    assert all(not torch.equal(other[name], weight) for name, weight in WHOLE.items() if weight.ndim == 2)


def test_bf16_weights_are_the_float32_ones_rounded() -> None:
    rounded = weights((0, 1, 2, 3), first=True, last=True, dtype="bfloat16")
    assert all(torch.equal(rounded[name], weight.bfloat16()) for name, weight in WHOLE.items())


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("tok_embeddings.weight", 1.0),
        ("output.weight", 0.1 / WHOLE["output.weight"].shape[1] ** 0.5),
        ("layers.0.attention.wq.weight", 0.02),
        ("layers.3.feed_forward.w1.weight", 0.02),
        ("layers.0.attention.wo.weight", 0.02 / 8**0.5),
        ("layers.3.feed_forward.w2.weight", 0.02 / 8**0.5),
    ],
)
def test_spread_is_as_stated(name: str, std: float) -> None:
    weight = WHOLE[name]
    assert weight.std().item() == pytest.approx(std, rel=0.03)
    assert abs(weight.mean().item()) < 5 * std / weight.numel() ** 0.5


def test_norms_begin_at_one() -> None:
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in WHOLE.values() if weight.ndim == 1)
