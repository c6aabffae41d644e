"""The fullest moments of a step, held to what runs of this engine on H200s held, planned as they ran (as_run).

Of one GPU all of them were measured while FSDP held its weights; none says what it reserves since.
Reserved memory of eighteen different runs: the mean error is 1.5 %, the largest -2.6 % (holes of the allocator are
counted in an eager loss only). Most bytes in use, known of twelve: 0.2 % and 0.4 %.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import Config
from engine.keys import with_values
from engine.planner.memory import Memory
from engine.planner.peak import FIRST_BACKWARD
from engine.planner.plan import Plan, plan
from tests.bench.published.as_run import plan_as_run, plan_on_fsdp
from tests.bench.published.own import held_out

GIB = 1 << 30
BENCH = Path(__file__).parents[2] / "bench"
AC, LOW = "activation_checkpoint.mode", "quantize.dense."
FSDP_2: dict[str, Any] = {"cluster.gpus_per_node": 2}
SIXTEEN: dict[str, Any] = {"model.shape.n_layers": 16}
EAGER: dict[str, Any] = {"compile.enable": False}

# The rows of tests/bench by name, as keys over an 8B model of 8,192 tokens on one compiled H200.
RUNS: dict[str, dict[str, Any]] = {
    "8B, FSDP 2, compile": FSDP_2,
    "8B, FSDP 2, compile, never reshard": {**FSDP_2, "parallelism.fsdp_reshard_after_forward": "never"},
    "8B, FSDP 2, eager": {**FSDP_2, **EAGER},
    "16 layers, 1 GPU, compile": SIXTEEN,
    "16 layers, 1 GPU, eager": {**SIXTEEN, **EAGER},
    "16 layers, replicate 2, compile": {**SIXTEEN, **FSDP_2, "parallelism.data_parallel_replicate_degree": 2},
    "reference: 1 GPU, 1 sequences": {},
    "bf16, eager": EAGER,
    "fp32, eager": {**EAGER, "training.mixed_precision_param": "float32"},
    "selective op": {AC: "selective"},
    "full recompute": {AC: "full"},
    "memory budget 0.5": {AC: "memory_budget", "activation_checkpoint.memory_budget": 0.5},
    "eager, selective op": {**EAGER, AC: "selective"},
    "eager, full recompute": {**EAGER, AC: "full"},
    "8 loss chunks": {"training.loss_chunks": 8},
    "float8 tensorwise": {LOW + "float8.enable": True},
    "float8 rowwise": {LOW + "float8.enable": True, LOW + "float8.recipe_name": "rowwise"},
    "MXFP8 emulated": {LOW + "mx.enable": True, LOW + "mx.recipe_name": "mxfp8_emulated"},
}


def measured() -> dict[str, dict[str, Any]]:
    """The rows that are kept, by name; of runs that were made twice the last."""
    rows = json.loads((BENCH / "data_parallel_h200x2.json").read_text("utf-8"))["rows"]
    for run in json.loads((BENCH / "parity_h200.json").read_text("utf-8"))["runs"]:
        rows += [{**row, "layers": run["layers"]} for row in run["rows"]]
    return {row["name"]: row for row in rows}


ROWS = measured()


def memory_of(name: str) -> Memory:
    """What is planned for a row."""
    base = {"model.flavor": "8B", "training.seq_len": 8192, "cluster.gpu": "h200", "compile.enable": True}
    base["cluster.gpus_per_node"] = 1
    layers = {"model.shape.n_layers": ROWS[name]["layers"]} if "layers" in ROWS[name] else {}
    return plan_on_fsdp(base | layers | RUNS[name]).memory


def test_every_measured_run_is_planned() -> None:
    assert ROWS.keys() == RUNS.keys()


@pytest.mark.parametrize("name", RUNS)
def test_reserved_memory_of_our_own_runs_is_within_three_percent(name: str) -> None:
    reserved = memory_of(name).reserved_bytes
    assert reserved is not None
    assert reserved / GIB == pytest.approx(ROWS[name]["peak_reserved_gib"], rel=0.03)


def test_reserved_memory_of_our_own_runs_is_within_two_percent_on_average() -> None:
    errors = [(memory_of(name).reserved_bytes or 0) / GIB / ROWS[name]["peak_reserved_gib"] - 1 for name in RUNS]
    assert sum(map(abs, errors)) / len(errors) < 0.02


def test_reserved_memory_of_twenty_later_runs_is_within_three_percent() -> None:
    errors = {
        case.id: (plan_as_run(case).memory.reserved_bytes or 0) / GIB / (case.memory_gib or 1) - 1
        for case in held_out()
    }
    assert len(errors) == 20
    assert max(map(abs, errors.values())) < 0.03, errors
    assert sum(map(abs, errors.values())) / len(errors) < 0.015


@pytest.mark.parametrize("name", [name for name in RUNS if "peak_active_gib" in ROWS[name]])
def test_used_memory_of_our_own_runs_is_within_one_percent(name: str) -> None:
    peak = memory_of(name).peak_bytes
    assert peak is not None
    assert peak / GIB == pytest.approx(ROWS[name]["peak_active_gib"], rel=0.01)


EIGHT_B: dict[str, Any] = {"model.flavor": "8B", "training.seq_len": 8192, "cluster.gpu": "h100-80"}


def planned(edits: dict[str, Any], *, gpus: int = 8) -> Plan:
    """Llama 3 8B at 8,192 tokens."""
    return plan(with_values(Config(), EIGHT_B | {"cluster.gpus_per_node": gpus} | edits))


def moments(found: Plan) -> dict[str, int]:
    """The moments of the fullest rank, in their order."""
    return {moment.name: moment.bytes for moment in found.memory.moments}


def test_c48_half_of_what_is_always_held_comes_with_the_first_update() -> None:
    found = planned({})
    memory, by_name = found.memory, moments(found)
    assert found.parameters == 8_030_261_248
    assert round(memory.static_bytes / GIB, 2) == 14.96
    assert round(memory.optimizer_bytes / GIB, 2) == 7.48
    later = max(size for name, size in by_name.items() if name not in ("forward", "optimizer", FIRST_BACKWARD))
    assert later - by_name[FIRST_BACKWARD] == memory.optimizer_bytes
    assert memory.peak_bytes == later


def test_moments_are_those_of_a_step_and_its_fullest_is_the_peak() -> None:
    found = planned({})
    by_name = moments(found)
    assert list(by_name) == [
        "forward",
        "loss",
        "gradient of the head",
        "backward of a block",
        "gradient of the embedding",
        "optimizer",
        FIRST_BACKWARD,
    ]
    assert by_name[found.memory.moment or ""] == found.memory.peak_bytes == max(by_name.values())


def test_copies_of_one_shard_divide_into_a_new_tensor() -> None:
    alone = plan_on_fsdp({**EIGHT_B, "cluster.gpus_per_node": 1}).memory.reserved_bytes
    copies = planned({"parallelism.data_parallel_replicate_degree": 8}).memory.reserved_bytes
    assert alone is not None
    assert copies is not None
    assert copies - alone == 4 * 128_256 * 4096 + 4 * 4096


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_every_rank_of_a_pipeline_says_when_its_gradients_are_summed(schedule: str) -> None:
    found = planned(
        {
            "parallelism.pipeline_parallel_degree": 4,
            "parallelism.pipeline_parallel_schedule": schedule,
            "training.local_batch_size": 16,
        }
    )
    names = [[moment.name for moment in stage.memory.moments] for stage in found.stages]
    assert all("sum of gradients" in of_rank for of_rank in names)
    assert all(
        ("gradients of the weights" in of_rank) == ("Zero" in schedule or schedule == "DualPipeV") for of_rank in names
    )
