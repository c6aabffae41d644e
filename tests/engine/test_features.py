"""Settings: everything asked for is active, inactive with a reason, or rejected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.config import Config
from engine.facts import Facts
from engine.features import FEATURES, NOT_BUILT, READ_BY, Setting
from engine.hardware import Machine
from engine.keys import field_types, value_of, with_values
from engine.rules import Report, check
from engine.sources import Loaded, load, preset_names

ROOT = Path(__file__).parents[2]
UNBUILT = [feature.key for feature in FEATURES if not feature.built]

# Another value than the default for every key of a feature, and what has to be on for it to have effect.
OTHER: dict[str, Any] = {
    "checkpoint.enable": True,
    "checkpoint.folder": "kept",
    "checkpoint.interval": 7,
    "checkpoint.async_mode": "async",
    "checkpoint.keep_latest_k": 3,
    "checkpoint.load_step": 5,
    "checkpoint.last_save_in_hf": True,
    "checkpoint.export_dtype": "bfloat16",
    "checkpoint.initial_load_path": "there",
    "checkpoint.initial_load_in_hf": True,
    "data.num_workers": 1,
    "data.prefetch": 1,
    "data.mixture": {"a": 1.0},
    "validation.enable": True,
    "validation.dataset": "text",
    "validation.dataset_path": "there",
    "validation.freq": 5,
    "validation.steps": 5,
    "launch.scheduler": "slurm",
    "launch.max_restarts": 1,
    "launch.slurm.partition": "a",
    "launch.slurm.account": "a",
    "launch.slurm.time": "1:00",
    "launch.slurm.qos": "a",
    "launch.slurm.extra": ("--exclusive",),
    "launch.kubernetes.kind": "JobSet",
    "launch.kubernetes.image": "a",
    "launch.kubernetes.namespace": "a",
    "launch.kubernetes.volumes": ("a:/b",),
    "metrics.enable_tensorboard": True,
    "metrics.enable_wandb": True,
    "profiling.enable_profiling": True,
    "profiling.profile_freq": 5,
}
ASYNC_TP: dict[str, Any] = {
    "parallelism.enable_async_tensor_parallel": True,
    "parallelism.tensor_parallel_degree": 2,
    "compile.enable": True,
}
WITH: dict[str, dict[str, Any]] = {
    "checkpoint.export_dtype": {"checkpoint.last_save_in_hf": True, "checkpoint.enable": True},
    "checkpoint.initial_load_in_hf": {"checkpoint.initial_load_path": "there"},
    "data.mixture": {"training.dataset": "text"},
}
SWITCHES = {
    "checkpoint": "checkpoint.enable",
    "profiling": "profiling.enable_profiling",
}


def on(key: str) -> dict[str, Any]:
    """What has to be set beside `key` so that it has effect."""
    section = key.rpartition(".")[0]
    if section == "validation":
        return {"validation.enable": True, "validation.dataset": "text", "validation.dataset_path": "there"}
    if section in ("launch.slurm", "launch.kubernetes"):
        return {"launch.scheduler": section.rpartition(".")[2]}
    switch = {} if section not in SWITCHES or key.startswith("checkpoint.initial") else {SWITCHES[section]: True}
    return switch | WITH.get(key, {})


def report(edits: dict[str, Any], *, gpus: int = 8, gpu: str = "b200") -> Report:
    """A check of the debug model with dotted keys replaced."""
    config = with_values(Config(), {"cluster.gpu": gpu, "cluster.gpus_per_node": gpus} | edits)
    return check(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"))


def setting(found: Report, key: str) -> Setting | None:
    return next((setting for setting in found.settings if setting.key == key), None)


def test_every_key_is_read_or_reported_and_none_is_forgotten() -> None:
    assert field_types().keys() == READ_BY.keys() | set(UNBUILT)


def test_a_key_that_is_not_built_is_read_by_nobody() -> None:
    assert READ_BY.keys().isdisjoint(UNBUILT)


@pytest.mark.parametrize("key", READ_BY)
def test_a_key_is_read_by_the_module_that_is_named_for_it(key: str) -> None:
    text = (ROOT / READ_BY[key]).read_text("utf-8")
    assert re.search(rf"\.{key.rpartition('.')[2]}\b", text), f"{READ_BY[key]} does not read {key}"


def test_no_feature_has_two_rows() -> None:
    keys = [feature.key for feature in FEATURES]
    assert len(keys) == len(set(keys))


def test_the_values_of_this_test_are_other_than_the_defaults() -> None:
    assert OTHER.keys() == set(UNBUILT)
    assert [key for key, value in OTHER.items() if value_of(Config(), key) == value] == []


@pytest.mark.parametrize("key", UNBUILT)
def test_what_is_not_built_yet_is_planned_and_said(key: str) -> None:
    found = report(on(key) | {key: OTHER[key]})
    assert [finding for finding in found.findings if finding.severity == "error"] == []
    assert found.plan is not None
    state = setting(found, key)
    assert state is not None
    assert (state.state, state.built) == ("inactive", False)
    assert state.reason.startswith(NOT_BUILT)
    assert state in found.unbuilt


IDLE = [key for key in UNBUILT if on(key) and key not in {*SWITCHES.values(), "validation.enable"}]


@pytest.mark.parametrize("key", IDLE)
def test_a_key_whose_switch_is_off_says_so_and_is_no_obstacle(key: str) -> None:
    found = report({key: OTHER[key]})
    state = setting(found, key)
    assert state is not None
    assert state.state != "active"
    assert not state.reason.startswith(NOT_BUILT)
    assert state not in found.unbuilt


def test_a_switch_that_is_off_is_named() -> None:
    state = setting(report({"quantize.dense.float8.recipe_name": "rowwise"}), "quantize.dense.float8.recipe_name")
    assert state is not None
    assert state.reason == "quantize.dense.float8.enable is off"


@pytest.mark.parametrize(
    ("edits", "key", "state", "reason"),
    [
        ({}, "parallelism.data_parallel_shard_degree", "active", "FSDP over 8 ranks"),
        (
            {"parallelism.data_parallel_replicate_degree": 2},
            "parallelism.data_parallel_replicate_degree",
            "active",
            "2 replicas of 4 shards (HSDP)",
        ),
        (
            {"parallelism.data_parallel_replicate_degree": 8},
            "parallelism.data_parallel_replicate_degree",
            "active",
            "8 replicas of the whole model",
        ),
        (
            {"parallelism.data_parallel_replicate_degree": 8, "parallelism.fsdp_reshard_after_forward": "never"},
            "parallelism.fsdp_reshard_after_forward",
            "inactive",
            "dp_shard=1: nothing is sharded",
        ),
        ({"parallelism.fsdp_reshard_after_forward": "never"}, "parallelism.fsdp_reshard_after_forward", "active", ""),
        (
            {"parallelism.tensor_parallel_degree": 2},
            "parallelism.tensor_parallel_degree",
            "active",
            "heads, hidden units and the sequence over 2 ranks, and the loss by vocabulary",
        ),
        (
            {"parallelism.tensor_parallel_degree": 2, "parallelism.disable_loss_parallel": True},
            "parallelism.disable_loss_parallel",
            "active",
            "every tensor rank has the logits of the whole vocabulary",
        ),
        (
            ASYNC_TP,
            "parallelism.enable_async_tensor_parallel",
            "active",
            "communication inside the products of every block; build counts the fused operators",
        ),
        (
            ASYNC_TP | {"quantize.dense.float8.enable": True},
            "parallelism.enable_async_tensor_parallel",
            "inactive",
            "quantize.dense.float8.enable is on, and fused products are in the precision of the weights",
        ),
        (
            ASYNC_TP | {"quantize.dense.mx.enable": True},
            "parallelism.enable_async_tensor_parallel",
            "inactive",
            "quantize.dense.mx.enable is on, and fused products are in the precision of the weights",
        ),
        (
            ASYNC_TP | {"parallelism.tensor_parallel_degree": 1},
            "parallelism.enable_async_tensor_parallel",
            "inactive",
            "tp=1",
        ),
        ({"parallelism.disable_loss_parallel": True}, "parallelism.disable_loss_parallel", "inactive", "tp=1"),
        (
            {"parallelism.context_parallel_degree": 2},
            "parallelism.context_parallel_degree",
            "active",
            "each sequence over 2 ranks, an early and a late piece of it on each: allgather",
        ),
        (
            {"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_method": "ulysses"},
            "parallelism.context_parallel_degree",
            "active",
            "each sequence over 2 ranks, one piece of it on each: ulysses",
        ),
        (
            {"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_method": "ring"},
            "parallelism.context_parallel_method",
            "active",
            "",
        ),
        ({"parallelism.context_parallel_method": "ring"}, "parallelism.context_parallel_method", "inactive", "cp=1"),
        (
            {"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_load_balance": "none"},
            "parallelism.context_parallel_load_balance",
            "active",
            "",
        ),
        (
            {"parallelism.context_parallel_load_balance": "none"},
            "parallelism.context_parallel_load_balance",
            "inactive",
            "cp=1",
        ),
        (
            {
                "parallelism.context_parallel_degree": 2,
                "parallelism.context_parallel_method": "ulysses",
                "parallelism.context_parallel_load_balance": "headtail",
            },
            "parallelism.context_parallel_load_balance",
            "inactive",
            "ulysses gives every rank whole sequences of some heads: the work is equal already",
        ),
        ({"data.document_mask": True}, "data.document_mask", "active", ""),
        (
            {"parallelism.pipeline_parallel_degree": 2},
            "parallelism.pipeline_parallel_degree",
            "active",
            "2 stages of 3 layers on 2 ranks",
        ),
        (
            {
                "parallelism.pipeline_parallel_degree": 2,
                "parallelism.pipeline_parallel_schedule": "DualPipeV",
                "model.shape.n_layers": 9,
                "training.local_batch_size": 6,
            },
            "parallelism.pipeline_parallel_schedule",
            "active",
            "6 microbatches a rank",
        ),
        (
            {"parallelism.pipeline_parallel_schedule": "GPipe"},
            "parallelism.pipeline_parallel_schedule",
            "inactive",
            "pp=1",
        ),
        (
            {
                "parallelism.pipeline_parallel_degree": 2,
                "parallelism.pipeline_parallel_microbatch_size": 2,
                "training.local_batch_size": 4,
            },
            "parallelism.pipeline_parallel_microbatch_size",
            "active",
            "",
        ),
        (
            {"parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_layers_per_stage": 4},
            "parallelism.pipeline_parallel_layers_per_stage",
            "active",
            "",
        ),
        ({}, "training.mixed_precision_param", "active", "bfloat16 over float32 weights"),
        ({"training.global_batch_size": 32}, "training.global_batch_size", "active", "4 accumulation steps"),
        (
            {"training.local_batch_size": "auto", "training.global_batch_size": 64},
            "training.local_batch_size",
            "active",
            "8, the largest whose plan leaves 8 % free",
        ),
        ({"compile.enable": True}, "compile.enable", "active", "model and loss"),
        ({"training.loss_chunks": 4}, "training.loss_chunks", "active", ""),
        (
            {"activation_checkpoint.mode": "selective"},
            "activation_checkpoint.mode",
            "active",
            "products, attention and sums over ranks are kept",
        ),
        (
            {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": 2},
            "activation_checkpoint.mode",
            "active",
            "every 2. layer keeps its input only",
        ),
        (
            {"activation_checkpoint.mode": "full"},
            "activation_checkpoint.mode",
            "active",
            "every layer keeps its input only",
        ),
        (
            {"activation_checkpoint.mode": "auto"},
            "activation_checkpoint.mode",
            "active",
            "the least that fits, by plan",
        ),
        (
            {
                "activation_checkpoint.mode": "memory_budget",
                "activation_checkpoint.memory_budget": 0.25,
                "compile.enable": True,
            },
            "activation_checkpoint.mode",
            "active",
            "the compiler keeps 25%",
        ),
        (
            {"activation_checkpoint.memory_budget": 0.25},
            "activation_checkpoint.memory_budget",
            "inactive",
            "activation_checkpoint.mode is not memory_budget",
        ),
        ({"quantize.dense.mx.enable": True}, "quantize.dense.mx.enable", "active", ""),
        (
            {
                "quantize.dense.float8.enable": True,
                "quantize.dense.float8.enable_fsdp_float8_all_gather": True,
                "parallelism.data_parallel_replicate_degree": 8,
            },
            "quantize.dense.float8.enable_fsdp_float8_all_gather",
            "inactive",
            "dp_shard=1: nothing is sharded",
        ),
        (
            {
                "quantize.dense.float8.enable": True,
                "quantize.dense.float8.enable_fsdp_float8_all_gather": True,
            },
            "quantize.dense.float8.enable_fsdp_float8_all_gather",
            "active",
            "",
        ),
        (
            {"compile.enable": True, "compile.components": ()},
            "compile.enable",
            "inactive",
            "compile.components is empty",
        ),
        (
            {"optimizer.name": "SGD", "optimizer.beta1": 0.8},
            "optimizer.beta1",
            "inactive",
            "optimizer.name = SGD keeps no running means",
        ),
        (
            {"lr_scheduler.decay_ratio": 0.0, "lr_scheduler.decay_type": "cosine"},
            "lr_scheduler.decay_type",
            "inactive",
            "decay_ratio = 0: the rate does not decay",
        ),
        ({"debug.deterministic": True}, "debug.deterministic", "active", ""),
        (
            {"training.dataset_path": "there"},
            "training.dataset_path",
            "inactive",
            "training.dataset = stdlib brings its own text",
        ),
        (
            {"model.hf_assets_path": "a", "data.tokenizer": "bytes"},
            "model.hf_assets_path",
            "inactive",
            "data.tokenizer goes before it",
        ),
        ({"data.on_bad_line": "skip"}, "data.on_bad_line", "inactive", "training.dataset is not jsonl"),
        ({"data.repeat": False}, "data.repeat", "active", "the run ends with the data"),
        (
            {"cluster.network_gbit_per_s_per_gpu": 50.0},
            "cluster.network_gbit_per_s_per_gpu",
            "inactive",
            "only predictions of time read it, and there are none yet",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_of_a_setting(edits: dict[str, Any], key: str, state: str, reason: str) -> None:
    found = setting(report(edits), key)
    assert found is not None
    assert (found.state, found.reason) == (state, reason)


def test_reduction_on_one_rank_is_inactive() -> None:
    state = setting(report({"training.mixed_precision_reduce": "bfloat16"}, gpus=1), "training.mixed_precision_reduce")
    assert state is not None
    assert (state.state, state.reason) == ("inactive", "world size 1")


def test_a_setting_that_an_error_names_is_rejected_with_its_message() -> None:
    state = setting(report({"parallelism.tensor_parallel_degree": 16}, gpus=16), "parallelism.tensor_parallel_degree")
    assert state is not None
    assert (state.state, state.built) == ("rejected", True)
    assert state.reason.startswith("P101: tensor_parallel_degree = 16 does not divide")


def test_what_nobody_asked_for_is_not_listed(no_gpu_here: Machine) -> None:
    found = check(load(environ={}))
    assert no_gpu_here.kind == "cpu"
    assert [setting.key for setting in found.settings] == ["training.mixed_precision_param"]


@pytest.fixture
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=8 << 30)
    monkeypatch.setattr("engine.hardware.this_machine", lambda: machine)
    return machine


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_built_whole(name: str) -> None:
    assert check(load(preset=name, environ={})).unbuilt == ()


def test_the_note_of_the_float8_gather_names_weights_whose_rows_do_not_divide() -> None:
    key = "quantize.dense.float8.enable_fsdp_float8_all_gather"
    found = setting(report({"quantize.dense.float8.enable": True, key: True}, gpus=3), key)
    assert found is not None
    names = "attention.wq (256 rows), attention.wk (128 rows), attention.wv (128 rows), attention.wo (256 rows)"
    assert found.reason == f"not for {names}, feed_forward.w2 (256 rows): they do not divide over 3 ranks"


def test_the_note_of_float8_lists_what_it_skips() -> None:
    facts = Facts(with_values(Config(), {"quantize.dense.float8.enable": True, "model.shape.n_kv_heads": 2,
                                         "model.shape.head_dim": 4}))  # fmt: skip
    [row] = [feature for feature in FEATURES if feature.key == "quantize.dense.float8.enable"]
    assert row.note(facts) == "skips attention.wk (256 x 8), attention.wv (256 x 8): no multiples of 16"
