"""Shapes: parameter counts as published, FLOPs as counted by hand."""

from __future__ import annotations

import pytest

from engine.config import Model, ShapeOverrides
from engine.shapes import (
    FLAVORS,
    ModelShape,
    block_parameters,
    flops_per_token,
    linear_parameter_count,
    parameter_count,
    part_parameters,
    shape_of,
)

# Counts of the authors' released weights; tied embeddings once.
PUBLISHED = {
    ("llama3", "1B"): 1_235_814_400,
    ("llama3", "3B"): 3_212_749_824,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("llama2", "7B"): 6_738_415_616,
    ("llama2", "13B"): 13_015_864_320,
    ("llama2", "70B"): 68_976_648_192,
    ("qwen3", "0.6B"): 596_049_920,
    ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
}
C47 = ModelShape(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, ffn_dim=128, vocab_size=256)


@pytest.mark.parametrize(("name", "flavor"), PUBLISHED, ids=" ".join)
def test_a_published_model_has_its_published_count(name: str, flavor: str) -> None:
    assert parameter_count(FLAVORS[name][flavor]) == PUBLISHED[name, flavor]


def test_every_flavor_but_the_debug_models_has_a_published_count() -> None:
    assert {(name, flavor) for name, sizes in FLAVORS.items() for flavor in sizes if flavor != "debugmodel"} == set(
        PUBLISHED
    )


@pytest.mark.parametrize(("name", "flavor"), [(name, flavor) for name in FLAVORS for flavor in FLAVORS[name]])
def test_every_flavor_can_be_trained(name: str, flavor: str) -> None:
    shape = FLAVORS[name][flavor]
    assert (shape.n_heads % shape.n_kv_heads, shape.head_dim % 2, shape.ffn_dim % 16) == (0, 0, 0)


def test_llama3_70b_has_the_numbers_of_its_paper() -> None:
    shape = FLAVORS["llama3"]["70B"]
    assert (shape.dim, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.ffn_dim) == (8192, 80, 64, 8, 28_672)
    assert (shape.rope_theta, shape.vocab_size) == (500_000.0, 128_256)


def test_c47_linear_parameters_leave_out_the_embedding_table() -> None:
    assert linear_parameter_count(C47) == 90_112


def test_c47_flops_of_a_token_in_the_full_square_convention() -> None:
    assert flops_per_token(C47, 32) == 540_672 + 49_152 == 589_824


def test_c47_mfu_of_a_million_tokens_on_an_a100() -> None:
    assert round(1e6 * flops_per_token(C47, 32) / 312e12 * 100, 4) == 0.1890


def test_c47_tied_embeddings_multiply_all_the_same() -> None:
    tied = shape_of(Model(name="llama3", flavor="1B"))
    assert linear_parameter_count(tied) == parameter_count(tied) - tied.dim * (2 * tied.n_layers + 1)


def test_c15_tied_embeddings_are_counted_once() -> None:
    shape = ModelShape(
        dim=1024, n_layers=1, n_heads=8, n_kv_heads=8, head_dim=128, ffn_dim=16, vocab_size=151_936, tie_embeddings=True
    )
    ends = part_parameters(shape, (), first=True, last=True)
    assert sum(weight.numel for name, weight in ends.items() if name != "norm.weight") == 155_582_464


def test_parts_hold_every_weight_of_the_model_once() -> None:
    shape = FLAVORS["llama3"]["debugmodel"]
    first = part_parameters(shape, (0, 1), first=True, last=False)
    last = part_parameters(shape, (2, 3, 4, 5), first=False, last=True)
    whole = part_parameters(shape, tuple(range(6)), first=True, last=True)
    assert first | last == whole
    assert first.keys().isdisjoint(last)
    assert sum(weight.numel for weight in whole.values()) == parameter_count(shape)


def test_qk_norm_adds_two_weights_of_head_dim_a_block() -> None:
    norms = {name: weight.shape for name, weight in block_parameters(FLAVORS["qwen3"]["8B"]).items() if "_norm" in name}
    assert norms["attention.q_norm.weight"] == norms["attention.k_norm.weight"] == (128,)


def test_overrides_stand_over_the_flavor() -> None:
    shape = shape_of(Model(flavor="8B", shape=ShapeOverrides(n_layers=2, vocab_size=1000, tie_embeddings=True)))
    assert (shape.n_layers, shape.vocab_size, shape.tie_embeddings, shape.head_dim) == (2, 1000, True, 128)


def test_head_dim_follows_an_overridden_dim_and_heads() -> None:
    assert shape_of(Model(flavor="8B", shape=ShapeOverrides(dim=1024, n_heads=16))).head_dim == 64


def test_a_given_head_dim_goes_before_the_derived_one() -> None:
    assert shape_of(Model(flavor="8B", shape=ShapeOverrides(dim=1024, head_dim=96))).head_dim == 96


def test_head_dim_stays_that_of_the_flavor_where_neither_is_overridden() -> None:
    assert shape_of(Model(name="qwen3", flavor="0.6B", shape=ShapeOverrides(n_layers=2))).head_dim == 128


def test_a_head_dim_that_does_not_divide_is_zero_and_never_rounded() -> None:
    assert shape_of(Model(shape=ShapeOverrides(dim=256, n_heads=12))).head_dim == 0


def test_an_unknown_flavor_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="9B"):
        shape_of(Model(flavor="9B"))
