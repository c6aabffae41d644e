"""The decoder, whole and in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import rms_norm

from engine.model.initial import initialise
from engine.model.llama import Decoder
from engine.shapes import FLAVORS, ModelShape, parameter_count, part_parameters

SHAPE = replace(FLAVORS["llama3"]["debugmodel"], dim=32, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=48)
CPU = torch.device("cpu")


def decoder(layers: tuple[int, ...], *, first: bool, last: bool, shape: ModelShape = SHAPE) -> Decoder:
    """A part on the CPU with its weights."""
    part = Decoder(shape, layers, first=first, last=last, seq_len=16)
    part.rebuild(CPU)
    initialise(part, seed=0)
    return part


@pytest.mark.parametrize("family", ["llama3", "llama2", "qwen3"])
def test_every_published_shape_has_the_planned_weights(family: str) -> None:
    for shape in FLAVORS[family].values():
        with torch.device("meta"):
            whole = Decoder(shape, tuple(range(shape.n_layers)), first=True, last=True, seq_len=8)
        built = {name: tuple(weight.shape) for name, weight in whole.named_parameters()}
        promised = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
        assert built == {name: weight.shape for name, weight in promised.items()}
        assert sum(weight.numel() for weight in whole.parameters()) == parameter_count(shape)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_parts_one_after_the_other_are_the_whole(cut: int) -> None:
    tokens = torch.randint(0, SHAPE.vocab_size, (2, 16))
    whole = decoder((0, 1, 2, 3), first=True, last=True)
    front = decoder(tuple(range(cut)), first=True, last=False)
    back = decoder(tuple(range(cut, 4)), first=False, last=True)
    assert torch.equal(back(front(tokens)), whole(tokens))


def test_a_part_without_ends_has_only_its_blocks() -> None:
    middle = decoder((2,), first=False, last=False)
    assert {name.split(".")[0] for name, _ in middle.named_parameters()} == {"layers"}
    assert middle(torch.randn(1, 16, 32)).shape == (1, 16, 32)


def test_shorter_sequences_than_planned_work() -> None:
    whole = decoder((0, 1, 2, 3), first=True, last=True)
    tokens = torch.randint(0, SHAPE.vocab_size, (1, 16))
    torch.testing.assert_close(whole(tokens[:, :5]), whole(tokens)[:, :5], rtol=1e-4, atol=1e-5)


def test_norms_compute_in_float32_inside() -> None:
    x = torch.randn(64, 256).bfloat16() * 30
    weight = torch.randn(256).bfloat16()
    exact = (x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * weight.double()).float()
    # One rounding to bfloat16 at most, and one of the normed value before the weight.
    torch.testing.assert_close(rms_norm(x, (256,), weight, 1e-5).float(), exact, rtol=2**-7, atol=0)


def test_the_first_loss_is_the_logarithm_of_the_vocabulary() -> None:
    from math import log

    from engine.model.loss import cross_entropy_sum

    shape = replace(FLAVORS["llama3"]["debugmodel"], n_layers=2)
    whole = decoder((0, 1), first=True, last=True, shape=shape)
    texts = torch.randint(0, shape.vocab_size, (4, 17))
    loss = cross_entropy_sum(whole(texts[:, :-1]), texts[:, 1:]).item() / 64
    assert loss == pytest.approx(log(shape.vocab_size), abs=0.15)


def test_tied_ends_are_one_weight_again_after_allocation() -> None:
    shape = replace(SHAPE, tie_embeddings=True)
    with torch.device("meta"):
        whole = Decoder(shape, (0,), first=True, last=True, seq_len=16)
    whole.to_empty(device=CPU)
    whole.rebuild(CPU)
    assert whole.output is not None
    assert whole.tok_embeddings is not None
    assert whole.output.weight is whole.tok_embeddings.weight
