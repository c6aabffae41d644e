"""The table of strategies: each says two sentences, names real keys, and is found in the configs that use it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.config import Config
from engine.keys import field_types, with_values
from engine.planner.plan import plan
from engine.strategies import STRATEGIES, Strategy, chosen

_P, _FLOAT8, _MX = "parallelism.", "quantize.dense.float8.", "quantize.dense.mx."
_REPLICATE, _SHARD = _P + "data_parallel_replicate_degree", _P + "data_parallel_shard_degree"
_TP, _PP, _CP = (_P + f"{axis}_parallel_degree" for axis in ("tensor", "pipeline", "context"))
_SCHEDULE = _P + "pipeline_parallel_schedule"

# Edits of a small config on eight GPUs, after each of which the strategy is in use; float32 throughout before.
_USES: dict[str, dict[str, Any]] = {
    "data-parallel": {_REPLICATE: 8, _SHARD: 1},
    "fsdp": {},
    "hsdp": {_REPLICATE: 2, _SHARD: 4},
    "gradient-accumulation": {"training.global_batch_size": 16},
    "tensor-parallel": {_TP: 2},
    "async-tensor-parallel": {_TP: 2, _P + "enable_async_tensor_parallel": True, "compile.enable": True},
    "pipeline": {_PP: 2, "training.local_batch_size": 2},
    "interleaved": {_PP: 2, _SCHEDULE: "Interleaved1F1B", "training.local_batch_size": 4},
    "zero-bubble": {_PP: 2, _SCHEDULE: "ZBVZeroBubble", "training.local_batch_size": 4},
    "context-parallel": {_CP: 2},
    "selective-recomputation": {"activation_checkpoint.mode": "selective"},
    "full-recomputation": {"activation_checkpoint.mode": "full"},
    "memory-budget": {"activation_checkpoint.mode": "memory_budget", "compile.enable": True},
    "loss-in-pieces": {"training.loss_chunks": 4},
    "mixed-precision": {"training.mixed_precision_param": "bfloat16"},
    "compile": {"compile.enable": True},
    "float8-tensorwise": {_FLOAT8 + "enable": True},
    "float8-rowwise": {_FLOAT8 + "enable": True, _FLOAT8 + "recipe_name": "rowwise"},
    "float8-all-gather": {_FLOAT8 + "enable": True, _FLOAT8 + "enable_fsdp_float8_all_gather": True},
    "mxfp8": {_MX + "enable": True},
}


def _config(edit: dict[str, Any]) -> Config:
    base = {
        "cluster.gpu": "b200",
        "cluster.gpus_per_node": 8,
        "training.mixed_precision_param": "float32",
        "training.seq_len": 256,
    }
    return with_values(Config(), base | edit)


def _used(edit: dict[str, Any]) -> set[str]:
    config = _config(edit)
    return {strategy.id for strategy in chosen(config, plan(config))}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.id)
def test_each_explains_itself_in_exactly_two_sentences(strategy: Strategy) -> None:
    assert len(re.findall(r"[.!?](?=\s+[A-Z]|$)", strategy.explains)) == 2


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.id)
def test_each_names_keys_of_the_config(strategy: Strategy) -> None:
    assert strategy.keys
    assert set(strategy.keys) <= set(field_types())


def test_ids_and_names_are_unique() -> None:
    assert len({strategy.id for strategy in STRATEGIES}) == len({strategy.name for strategy in STRATEGIES}) == 20


@pytest.mark.parametrize(("strategy_id", "edit"), _USES.items(), ids=_USES)
def test_each_is_found_where_it_is_used(strategy_id: str, edit: dict[str, Any]) -> None:
    assert strategy_id in _used(edit)


def test_every_strategy_has_an_edit_that_uses_it() -> None:
    assert set(_USES) == {strategy.id for strategy in STRATEGIES}


def test_a_plain_sharded_run_uses_fsdp_and_nothing_else() -> None:
    assert _used({}) == {"fsdp"}


def test_replication_sharding_and_both_exclude_one_another() -> None:
    data = {"data-parallel", "fsdp", "hsdp"}
    assert [_used(_USES[name]) & data for name in sorted(data)] == [{name} for name in sorted(data)]


def test_async_tp_is_not_said_to_be_used_where_float8_keeps_it_out() -> None:
    both = _USES["async-tensor-parallel"] | _USES["float8-tensorwise"]
    assert "async-tensor-parallel" not in _used(both)


def test_a_schedule_without_a_pipeline_is_no_strategy_in_use() -> None:
    assert _used({_SCHEDULE: "Interleaved1F1B"}) == {"fsdp"}


@pytest.mark.parametrize("beginners", ["data-parallel", "fsdp", "hsdp", "compile"])
def test_what_needs_no_experience_is_for_beginners(beginners: str) -> None:
    assert {strategy.id: strategy.level for strategy in STRATEGIES}[beginners] == "beginner"


@pytest.mark.parametrize("advanced", ["async-tensor-parallel", "interleaved", "zero-bubble"])
def test_what_has_to_be_explained_is_advanced(advanced: str) -> None:
    assert {strategy.id: strategy.level for strategy in STRATEGIES}[advanced] == "advanced"


def test_every_purpose_of_the_table_has_a_strategy() -> None:
    assert {strategy.for_ for strategy in STRATEGIES} == {"memory", "speed", "width", "depth", "length"}
