"""The model's numbers: weights, FLOPs, MFU, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest

from engine.rules import check
from engine.sources import load

FLAVOR = "model.flavor"
C47 = {
    "cluster.gpu": "a100-40",
    "cluster.gpus_per_node": 1,
    "training.seq_len": 32,
    **{
        f"model.shape.{name}": value
        for name, value in {
            "dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "ffn_dim": 128,
            "vocab_size": 256,
        }.items()
    },
}


def figures(found: Any) -> dict[str, Any]:
    return {figure.name: figure.value for figure in found.figures}


def test_c47_flops_of_a_token_with_the_convention_stated(explain: Any) -> None:
    found = explain(C47)[FLAVOR]
    assert figures(found)["linear parameters"] == 90_112
    assert figures(found)["FLOPs per token"] == 589_824
    formula = next(figure.formula for figure in found.figures if figure.name == "FLOPs per token")
    assert formula.startswith("6 x 90,112 + 12 x 2 x 64 x 32; ")
    assert "no embedding table" in formula
    assert "full square of attention" in formula


def test_c47_mfu_is_the_plans_over_the_dense_bfloat16_peak(preset: Any) -> None:
    plan = check(load(preset="fsdp-8b", environ={})).plan
    found = preset("fsdp-8b")[FLAVOR]
    assert figures(found)["MFU, %"] == round(plan.mfu_pct, 2)
    assert "989.4 TFLOP/s" in found.figures[-1].formula


def test_c48_weights_in_gb_and_gib(preset: Any) -> None:
    found = preset("fsdp-8b")[FLAVOR]
    formula = next(figure.formula for figure in found.figures if figure.name.startswith("weights"))
    assert formula == "8,030,261,248 x 2 bytes = 16.06 GB = 14.96 GiB"


def test_a_number_left_out_is_that_of_the_flavor(preset: Any) -> None:
    found = preset("3d-405b")["model.shape.ffn_dim"]
    assert (found.derived.value, found.derived.formula) == (53_248, "that of llama3 405B")


def test_head_dim_is_the_quotient_of_what_was_overridden(explain: Any) -> None:
    found = explain(C47)["model.shape.head_dim"]
    assert (found.derived.value, found.derived.formula) == (16, "dim 64 / n_heads 4 = 16")


def test_shares_of_the_parts_make_the_whole(preset: Any) -> None:
    found = preset("fsdp-8b")
    parts = ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")
    whole = found["model.shape.dim"].cost.bytes
    assert whole == found[FLAVOR].cost.bytes
    assert sum(found[f"model.shape.{name}"].cost.bytes for name in parts) == pytest.approx(whole, rel=1e-3)


def test_the_vocabulary_costs_the_rank_that_holds_it(preset: Any) -> None:
    found = preset("3d-405b")["model.shape.vocab_size"].cost
    assert found.bytes > 0
    assert "pipeline rank 0" in found.text


def test_tied_embeddings_are_held_against_untied_ones(explain: Any) -> None:
    found = explain({"model.flavor": "1B"})["model.shape.tie_embeddings"]
    assert found.derived.value is True
    assert found.cost.bytes < 0


def test_a_refused_neighbour_is_named_with_its_rule(preset: Any) -> None:
    found = preset("3d-405b")["model.shape.tie_embeddings"].cost
    assert (found.bytes, found.ms, found.text) == (None, None, "not known: against true is refused by P119")
