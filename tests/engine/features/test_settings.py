"""Settings: everything asked for is active, inactive with a reason, or rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import Config
from engine.facts import Facts
from engine.features import FEATURES, Setting
from engine.hardware import Machine
from engine.keys import with_values
from engine.rules import check
from engine.sources import load

ASYNC_TP: dict[str, Any] = {
    "parallelism.enable_async_tensor_parallel": True,
    "parallelism.tensor_parallel_degree": 2,
    "compile.enable": True,
}


def test_no_feature_has_two_rows() -> None:
    keys = [feature.key for feature in FEATURES]
    assert len(keys) == len(set(keys))


def test_a_switch_that_is_off_is_named(setting: Callable[..., Setting | None]) -> None:
    state = setting({"quantize.dense.float8.recipe_name": "rowwise"}, "quantize.dense.float8.recipe_name")
    assert state is not None
    assert state.reason == "quantize.dense.float8.enable is off"


@pytest.mark.parametrize(
    ("edits", "key", "state", "reason"),
    [
        (
            {"cluster.gpus_per_node": 1, "parallelism.fsdp_reshard_after_forward": "always"},
            "parallelism.fsdp_reshard_after_forward",
            "active",
            "a block's copies to compute with are made for each of its passes",
        ),
        (
            {
                "cluster.gpus_per_node": 1,
                "parallelism.fsdp_reshard_after_forward": "always",
                "training.mixed_precision_param": "float32",
            },
            "parallelism.fsdp_reshard_after_forward",
            "inactive",
            "dp_shard=1: nothing is sharded",
        ),
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
            "8, the planner's choice of those that leave 8 % free",
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
        ({"compile.enable": True, "compile.components": ()}, "compile.components", "inactive", "it is empty"),
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
        ({"data.on_bad_line": "skip"}, "data.on_bad_line", "inactive", "the corpus has no lines that break"),
        ({"data.repeat": False}, "data.repeat", "active", "the run ends with the data"),
        (
            {"cluster.network_gbit_per_s_per_gpu": 50.0},
            "cluster.network_gbit_per_s_per_gpu",
            "inactive",
            "nodes=1: nothing leaves the node",
        ),
        ({"cluster.memory_gib": 60.0}, "cluster.memory_gib", "active", ""),
        ({"cluster.fp8_tflops": 1500.0}, "cluster.fp8_tflops", "inactive", "nothing is multiplied in float8"),
        (
            {"cluster.fp32_tflops": 50.0},
            "cluster.fp32_tflops",
            "inactive",
            "training.mixed_precision_param is not float32",
        ),
        ({"cluster.nvlink_gbyte_per_s": 400.0}, "cluster.nvlink_gbyte_per_s", "active", ""),
        ({"cluster.pcie_gbyte_per_s": 50.0}, "cluster.pcie_gbyte_per_s", "inactive", "NVLink goes before it"),
        ({"cluster.calibration": "none"}, "cluster.calibration", "active", "no measured rates"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_of_a_setting(
    setting: Callable[..., Setting | None], edits: dict[str, Any], key: str, state: str, reason: str
) -> None:
    found = setting(edits, key)
    assert found is not None
    assert (found.state, found.reason) == (state, reason)


_TENSOR, _PIPELINE = "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"


@pytest.mark.parametrize(
    ("edits", "gpus", "state", "reason"),
    [
        (
            {},
            1,
            "inactive",
            "one backward a step, and no rank shares a weight with another: no gradients are added up",
        ),
        ({"training.global_batch_size": 4}, 1, "active", "over the 4 backwards of a step"),
        ({_TENSOR: 2}, 2, "active", "over 2 tensor ranks, of norms"),
        (
            {_TENSOR: 2, _PIPELINE: 2, "training.local_batch_size": 4},
            4,
            "active",
            "over the 4 backwards of a step and 2 tensor ranks, of norms",
        ),
        ({}, 2, "active", ""),
        ({"parallelism.context_parallel_degree": 2}, 2, "active", ""),
    ],
)
def test_reduction_is_inactive_where_no_gradients_are_added_up(
    setting: Callable[..., Setting | None], edits: dict[str, Any], gpus: int, state: str, reason: str
) -> None:
    key = "training.mixed_precision_reduce"
    found = setting({key: "bfloat16"} | edits, key, gpus=gpus)
    assert found is not None
    assert (found.state, found.reason) == (state, reason)


def test_a_setting_that_an_error_names_is_rejected_with_its_message(setting: Callable[..., Setting | None]) -> None:
    state = setting({"parallelism.tensor_parallel_degree": 16}, "parallelism.tensor_parallel_degree", gpus=16)
    assert state is not None
    assert state.state == "rejected"
    assert state.reason.startswith("P101: tensor_parallel_degree = 16 does not divide")


@pytest.mark.parametrize("key", ["enable", "recipe_name", "filter_fqns"])
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"training.seq_len": 100}, "Q301"),
        ({"model.shape.ffn_dim": 784, "parallelism.tensor_parallel_degree": 2}, "Q302"),
        ({"quantize.dense.mx.enable": True}, "Q303"),
        ({"training.mixed_precision_param": "float32"}, "Q309"),
        ({"cluster.gpu": "a100-80"}, "H702"),
    ],
)
def test_low_precision_that_is_refused_is_rejected_as_a_whole(
    setting: Callable[..., Setting | None], wrong: dict[str, Any], rule: str, key: str
) -> None:
    float8 = {"enable": True, "recipe_name": "rowwise", "filter_fqns": ("output", "wk")}
    edits = {f"quantize.dense.float8.{name}": value for name, value in float8.items()} | wrong
    found = setting(edits, f"quantize.dense.float8.{key}")
    assert found is not None
    assert (found.state, found.reason.partition(":")[0]) == ("rejected", rule)


def test_what_a_refused_precision_leaves_idle_stays_idle(setting: Callable[..., Setting | None]) -> None:
    edits = {"quantize.dense.float8.enable": True, "training.seq_len": 100, "quantize.dense.mx.filter_fqns": ("wk",)}
    found = setting(edits, "quantize.dense.mx.filter_fqns")
    assert found is not None
    assert (found.state, found.reason) == ("inactive", "quantize.dense.mx.enable is off")


def test_what_nobody_asked_for_is_not_listed(no_gpu_here: Machine) -> None:
    found = check(load(environ={}))
    assert no_gpu_here.kind == "cpu"
    assert [setting.key for setting in found.settings] == ["training.mixed_precision_param"]


@pytest.fixture
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=8 << 30)
    monkeypatch.setattr("engine.hardware.this_machine", lambda: machine)
    return machine


def test_the_note_of_the_float8_gather_names_weights_whose_rows_do_not_divide(
    setting: Callable[..., Setting | None],
) -> None:
    key = "quantize.dense.float8.enable_fsdp_float8_all_gather"
    found = setting({"quantize.dense.float8.enable": True, key: True}, key, gpus=3)
    assert found is not None
    names = "attention.wq (256 rows), attention.wk (128 rows), attention.wv (128 rows), attention.wo (256 rows)"
    assert found.reason == f"not for {names}, feed_forward.w2 (256 rows): they do not divide over 3 ranks"


def test_the_note_of_float8_lists_what_it_skips() -> None:
    facts = Facts(with_values(Config(), {"quantize.dense.float8.enable": True, "model.shape.n_kv_heads": 2,
                                         "model.shape.head_dim": 4}))  # fmt: skip
    [row] = [feature for feature in FEATURES if feature.key == "quantize.dense.float8.enable"]
    assert row.note(facts) == "skips attention.wk (256 x 8), attention.wv (256 x 8): no multiples of 16"


@pytest.mark.parametrize(
    ("mode", "words"), [("async", "the host's memory"), ("async_with_pinned_mem", "the host's pinned memory")]
)
def test_the_note_of_saving_beside_training_tells_what_each_rank_copies(
    mode: str, words: str, setting: Callable[..., Setting | None]
) -> None:
    edits = {"checkpoint.enable": True, "checkpoint.async_mode": mode, "model.flavor": "8B"}
    found = setting(edits, "checkpoint.async_mode")
    assert found is not None
    assert found.reason == f"written from a copy in {words}, 12.0 GB of each rank"
