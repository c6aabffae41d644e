"""The whole of an explanation: every key, with or without a plan, and only what the planner reads has a cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.explain import ROWS, explained
from engine.hardware import GPUS, resolve_cluster
from engine.keys import field_docs, field_types, value_of, with_values
from engine.planner.plan import plan
from engine.rules import check
from engine.rules.watch import watched
from engine.sources import Loaded, load

CONTRACT = {"key", "value", "origin", "doc", "derived", "cost"}
PRESETS = ("quickstart", "fsdp-8b", "2d-70b", "3d-405b", "4d-405b-long")
# The planner copies the whole of [model.shape] to make the shape; no number of a plan depends on this one.
COPIED = {"model.shape.rope_theta"}


def told(everything: Any) -> Any:
    return json.loads(json.dumps([each.to_json() for each in everything], allow_nan=False))


@pytest.mark.parametrize("name", PRESETS)
def test_every_key_is_explained_in_the_order_of_the_config(name: str, preset: Any) -> None:
    assert list(preset(name)) == list(field_types())


@pytest.mark.parametrize("name", PRESETS)
def test_json_has_the_keys_of_the_contract_first(name: str, preset: Any) -> None:
    objects = told(preset(name).values())
    assert all(list(each)[:4] == ["key", "value", "origin", "doc"] and each.keys() >= CONTRACT for each in objects)


def test_the_origin_of_a_value_names_its_file_and_line(read: Any) -> None:
    loaded = read('[cluster]\ngpu = "h200"\n[training]\nseq_len = 4096\n', "--training.steps 7", TITAN_DEBUG__SEED="3")
    found = {each["key"]: each["origin"] for each in told(explained(loaded, check(loaded)))}
    assert found["training.seq_len"]["kind"] == "file"
    assert found["training.seq_len"]["line"] == 4
    assert found["training.seq_len"]["file"].endswith("run.toml")
    assert found["training.steps"] == {"kind": "flag", "file": None, "line": None}
    assert found["debug.seed"]["kind"] == "environment"
    assert found["optimizer.lr"]["kind"] == "default"
    assert found["training.global_batch_size"]["kind"] == "derived"


def test_what_the_planner_resolves_for_a_written_key_keeps_where_it_was_written(read: Any) -> None:
    loaded = read('[cluster]\ngpu = "h200"\n[parallelism]\ndata_parallel_shard_degree = -1\n')
    found = {each.key: each for each in explained(loaded, check(loaded))}["parallelism.data_parallel_shard_degree"]
    assert (found.origin_kind, found.origin.line, found.derived.value) == ("file", 4, 8)


def test_a_broken_config_is_explained_without_its_plan() -> None:
    config = with_values(Config(), {"cluster.gpu": "h100-80", "training.global_batch_size": 0})
    loaded = Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")
    report = check(loaded)
    assert report.plan is None
    found = explained(loaded, report)
    assert [each.key for each in found] == list(field_types())
    assert all(each.doc and each.derived is None and each.cost is None and each.ties == "" for each in found)
    assert {each.key: each.change for each in found if each.change} == {
        "training.global_batch_size": "set it to 1 or more, or to -1 for local_batch_size x data ranks"
    }
    told(found)


def test_a_file_that_does_not_parse_is_explained_all_the_same(read: Any) -> None:
    loaded = read('[training]\nseq_len = "long"\n')
    found = {each.key: each for each in explained(loaded, check(loaded))}
    assert found["training.seq_len"].value == 2048
    assert all(each.cost is None for each in found.values())


def test_only_the_named_keys_are_explained() -> None:
    loaded = load(preset="fsdp-8b", environ={})
    found = explained(loaded, check(loaded), keys={"training.steps", "training.seq_len"})
    assert [each.key for each in found] == ["training.seq_len", "training.steps"]


def test_every_row_is_of_a_key() -> None:
    assert ROWS.keys() <= field_types().keys()


@pytest.mark.parametrize("name", PRESETS[1:])
@pytest.mark.parametrize("mode", ["none", "selective", "full", "memory_budget"])
def test_every_key_that_the_planner_reads_has_a_cost(name: str, mode: str) -> None:
    reads: set[str] = set()
    config = with_values(
        load(preset=name, environ={}).config,
        {"activation_checkpoint.mode": mode, "training.local_batch_size": "auto"},
    )
    plan(watched(config, reads), resolve_cluster(config.cluster))
    assert {key for key in reads - COPIED if ROWS[key].cost is None} == set()


@pytest.mark.parametrize("name", PRESETS)
def test_a_key_that_the_planner_does_not_read_says_so(name: str, preset: Any) -> None:
    for key, each in preset(name).items():
        if key not in ROWS or ROWS[key].cost is None:
            assert (each.cost.bytes, each.cost.ms, each.cost.text) == (0, 0.0, "none: it does not change the plan")


def test_text_and_value_are_those_of_the_config(preset: Any) -> None:
    config = load(preset="2d-70b", environ={}).config
    assert all(each.doc == field_docs()[key] for key, each in preset("2d-70b").items())
    assert all(each.value == value_of(config, key) for key, each in preset("2d-70b").items())


# ── C13: what is in force is in the report; here it has a cost only where it is ──


def test_c13_async_tp_of_one_tensor_rank_costs_nothing_for_that_reason(explain: Any) -> None:
    edits = {"compile.enable": True, "parallelism.enable_async_tensor_parallel": True}
    found = explain(edits)["parallelism.enable_async_tensor_parallel"]
    assert (found.value, found.cost.bytes, found.cost.ms, found.cost.text) == (True, 0, 0.0, "none: tp=1")


def test_c13_async_tp_without_compile_has_a_change_and_no_cost(explain: Any) -> None:
    edits = {"parallelism.tensor_parallel_degree": 2, "parallelism.enable_async_tensor_parallel": True}
    found = explain(edits)["parallelism.enable_async_tensor_parallel"]
    assert found.cost is None
    assert "compile" in found.change


def test_c13_async_tp_in_force_saves_time(explain: Any) -> None:
    edits = {
        "model.flavor": "8B",
        "training.seq_len": 8192,
        "compile.enable": True,
        "parallelism.tensor_parallel_degree": 8,
        "parallelism.enable_async_tensor_parallel": True,
    }
    found = explain(edits)["parallelism.enable_async_tensor_parallel"]
    assert found.cost.ms < 0
    assert found.cost.text.startswith("without it: ")


# ── any config ──

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model.name": st.sampled_from(["llama3", "llama2", "qwen3"]),
    "model.shape.n_layers": st.integers(1, 12),
    "model.shape.n_kv_heads": st.sampled_from([1, 2, 4, 8]),
    "model.shape.tie_embeddings": st.booleans(),
    "training.seq_len": st.sampled_from([1, 16, 250, 256]),
    "training.local_batch_size": st.one_of(st.integers(1, 8), st.just("auto")),
    "training.global_batch_size": st.sampled_from([-1, 8, 64]),
    "training.steps": st.integers(1, 20),
    "training.max_norm": st.sampled_from([0.0, 1.0]),
    "training.dtype": st.sampled_from(["float32", "bfloat16"]),
    "parallelism.data_parallel_replicate_degree": st.sampled_from([1, 1, 2]),
    "parallelism.data_parallel_shard_degree": st.sampled_from([-1, -1, -1, 1, 2, 8]),
    "parallelism.fsdp_reshard_after_forward": st.sampled_from(["default", "always", "never"]),
    "parallelism.tensor_parallel_degree": st.sampled_from([1, 1, 2, 4]),
    "parallelism.enable_async_tensor_parallel": st.booleans(),
    "parallelism.pipeline_parallel_degree": st.sampled_from([1, 1, 2, 4]),
    "parallelism.pipeline_parallel_schedule": st.sampled_from(["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"]),
    "parallelism.pipeline_parallel_layers_per_stage": st.one_of(st.none(), st.integers(1, 6)),
    "parallelism.context_parallel_degree": st.sampled_from([1, 1, 2]),
    "parallelism.context_parallel_method": st.sampled_from(["allgather", "ring", "ulysses"]),
    "parallelism.context_parallel_load_balance": st.sampled_from(["headtail", "none", "auto"]),
    "activation_checkpoint.mode": st.sampled_from(["none", "selective", "full", "memory_budget", "auto"]),
    "compile.enable": st.booleans(),
    "compile.components": st.sampled_from([("model", "loss"), ("loss",), ()]),
    "quantize.dense.float8.enable": st.booleans(),
    "quantize.dense.float8.recipe_name": st.sampled_from(["tensorwise", "rowwise", "rowwise_with_gw_hp"]),
    "quantize.dense.float8.filter_fqns": st.sampled_from([("output",), ()]),
    "quantize.dense.mx.enable": st.sampled_from([False, False, True]),
    "optimizer.name": st.sampled_from(["AdamW", "SGD"]),
    "optimizer.lr": st.sampled_from([0.0, 1e-3]),
    "lr_scheduler.warmup_steps": st.integers(0, 25),
    "lr_scheduler.decay_ratio": st.one_of(st.none(), st.floats(0, 1)),
    "cluster.gpu": st.sampled_from([*GPUS, "cpu", "auto"]),
    "cluster.nodes": st.sampled_from([1, 1, 2, 3]),
    "cluster.gpus_per_node": st.one_of(st.sampled_from([1, 2, 8]), st.just("auto")),
    "cluster.bf16_tflops": st.one_of(st.none(), st.just(500.0)),
}
EDITS = st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=7).flatmap(
    lambda keys: st.fixed_dictionaries({key: VALUES[key] for key in keys})
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS)
def test_any_config_is_explained_in_plain_json(edits: dict[str, Any]) -> None:
    usual = {"cluster.gpu": "h100-80", "cluster.gpus_per_node": 8}
    config = with_values(Config(), usual | edits)
    loaded = Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")
    report = check(loaded)
    event("planned" if report.plan is not None else "refused")
    found = explained(loaded, report)
    assert len(told(found)) == len(field_types())
    assert all((each.cost is None) == (report.plan is None) for each in found)
