"""Switches and choices: each is held against a neighbour that is planned."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.explain.known import step_ms, used_bytes
from engine.keys import with_values
from engine.planner.plan import plan
from engine.sources import load

MODE, RESHARD = "activation_checkpoint.mode", "parallelism.fsdp_reshard_after_forward"
COMPILE, FLOAT8 = "compile.enable", "quantize.dense.float8.enable"
BALANCE = "parallelism.context_parallel_load_balance"
ALONE = {"cluster.gpus_per_node": 1, "model.shape.n_layers": 2}
BIG = {"model.flavor": "8B", "training.seq_len": 8192}


@pytest.mark.parametrize(
    ("key", "edit"),
    [
        (MODE, {MODE: "none"}),
        (COMPILE, {COMPILE: False, "parallelism.enable_async_tensor_parallel": False}),
        (FLOAT8, {FLOAT8: False, FLOAT8.replace("enable", "enable_fsdp_float8_all_gather"): False}),
        (RESHARD, {RESHARD: "always"}),
        ("training.mixed_precision_reduce", {"training.mixed_precision_reduce": "bfloat16"}),
    ],
)
def test_a_cost_is_what_the_plan_without_it_lacks(key: str, edit: dict[str, Any], preset: Any) -> None:
    config = load(preset="3d-405b", environ={}).config
    here, there = plan(config), plan(with_values(config, edit))
    found = preset("3d-405b")[key].cost
    assert found.bytes == used_bytes(here) - used_bytes(there)
    assert found.ms == pytest.approx(step_ms(here) - step_ms(there))


def test_a_switch_that_is_off_costs_nothing_and_offers_to_be_on(explain: Any) -> None:
    found = explain(BIG)[COMPILE]
    assert (found.cost.bytes, found.cost.ms, found.cost.text) == (0, 0.0, "off: nothing")
    assert found.change.startswith("for speed: set it to true: ")


def test_a_setting_that_something_else_idles_says_what(preset: Any) -> None:
    found = preset("3d-405b")
    assert found["activation_checkpoint.memory_budget"].cost.text == (
        "none: activation_checkpoint.mode is not memory_budget"
    )
    assert found["quantize.dense.mx.recipe_name"].cost.text == "none: quantize.dense.mx.enable is off"
    assert found["activation_checkpoint.memory_budget"].change == ""


def test_resharding_left_open_is_never_in_a_pipeline_and_always_without(preset: Any) -> None:
    assert preset("3d-405b")[RESHARD].derived.value == "never"
    assert preset("fsdp-8b")[RESHARD].derived.value == "always"


def test_one_gpu_gathers_no_weights_and_adds_up_no_gradients(explain: Any) -> None:
    found = explain(BIG | ALONE)
    assert found[RESHARD].derived is None
    assert found[RESHARD].cost.text == "none: dp_shard=1: nothing is sharded"
    assert found["training.mixed_precision_reduce"].cost.text.startswith("none: one backward a step")
    assert (found[RESHARD].change, found["training.mixed_precision_reduce"].change) == ("", "")


def test_several_backwards_of_one_gpu_are_added_up_in_a_precision_that_costs_memory(explain: Any) -> None:
    several = BIG | ALONE | {"training.global_batch_size": 4}
    cost = explain(several)["training.mixed_precision_reduce"].cost
    # Float32 sums instead of bfloat16: two bytes for each of 1,486,901,248 weights.
    assert cost.bytes == 2 * plan(with_values(Config(), several)).parameters
    assert cost.ms > 0


@pytest.mark.parametrize(
    ("edits", "value"),
    [
        ({}, "none"),
        ({"parallelism.context_parallel_degree": 2}, "headtail"),
        ({"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_method": "ulysses"}, "none"),
    ],
)
def test_balance_left_open_is_told_with_its_reason(edits: dict[str, Any], value: str, explain: Any) -> None:
    found = explain(BIG | edits)[BALANCE].derived
    assert found.value == value
    assert found.formula


def test_automatic_recomputation_is_the_planners_choice(explain: Any) -> None:
    found = explain(BIG | {MODE: "auto"})[MODE]
    assert found.derived.value in ("none", "selective", "full")
    assert found.derived.formula.startswith("the fastest that leaves room")


def test_emulated_float8_is_told_as_slow(explain: Any) -> None:
    edits = {FLOAT8: True, "quantize.dense.float8.emulate": True}
    assert "emulation has no speed" in explain(BIG | edits)["quantize.dense.float8.emulate"].cost.text
