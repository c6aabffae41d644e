"""What holds of every plan, whatever the layout: physics and bookkeeping, on configs drawn at random."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.errors import exit_code
from engine.hardware import GPUS, resolve_cluster
from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.stack import STACKS, Stack
from engine.rules import check
from engine.rules.layouts import refusal
from engine.sources import Loaded

P, LOW, AC = "parallelism.", "quantize.dense.float8.", "activation_checkpoint.mode"
SCHEDULES = ["1F1B", "Interleaved1F1B", "GPipe", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
RATES = {
    "network_gbit_per_s_per_gpu": ("usual_network_gbit_per_s", 1.0),
    "nvlink_gbyte_per_s": ("nvlink_bytes_per_s", 1e9),
    "hbm_tbyte_per_s": ("hbm_bytes_per_s", 1e12),
    "bf16_tflops": ("bf16_flops_per_s", 1e12),
    "pcie_gbyte_per_s": ("pcie_bytes_per_s", 1e9),
}
# A tile more or less in a wave, and which of two ranks counts as the busiest, move a step by less.
NOISE = 1e-4
# A block that is made again as a whole stands beside what it is made from: of few layers that is a percent.
BLOCK_AGAIN = 1.01


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    """Keys of a run on some GPUs; most of them are lawful."""

    def one_of(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    tp, cp, pp = one_of(1, 1, 2, 4, 8), one_of(1, 1, 2), one_of(1, 1, 2, 4)
    shards, replicas = one_of(1, 2, 4, 8), one_of(1, 1, 2)
    world = tp * cp * pp * shards * replicas
    microbatch = one_of(1, 2)
    found = {
        "cluster.gpu": one_of(*GPUS),
        "cluster.nodes": max(1, world // 8),
        "cluster.gpus_per_node": min(world, 8),
        "model.flavor": one_of("8B", "70B"),
        "model.shape.n_layers": one_of(8, 16, 33),
        "training.seq_len": one_of(2048, 8192),
        "training.local_batch_size": microbatch * one_of(2, 4, 8) * (pp if pp > 1 else 1),
        "training.dtype": one_of("float32", "float32", "bfloat16"),
        "training.mixed_precision_reduce": one_of("float32", "float32", "bfloat16"),
        "training.loss_chunks": one_of(1, 1, 4),
        P + "tensor_parallel_degree": tp,
        P + "context_parallel_degree": cp,
        P + "context_parallel_method": one_of("allgather", "ulysses"),
        P + "pipeline_parallel_degree": pp,
        P + "pipeline_parallel_schedule": one_of(*SCHEDULES),
        P + "pipeline_parallel_microbatch_size": microbatch,
        P + "data_parallel_shard_degree": shards,
        P + "data_parallel_replicate_degree": replicas,
        P + "fsdp_reshard_after_forward": one_of("default", "always", "never"),
        P + "enable_async_tensor_parallel": one_of(False, True),
        AC: one_of("none", "selective", "full"),
        "compile.enable": one_of(False, True),
        LOW + "enable": one_of(False, False, True),
        LOW + "enable_fsdp_float8_all_gather": one_of(False, True),
        "optimizer.implementation": one_of("fused", "foreach"),
    }
    accumulates = one_of(False, False, True)
    return found | (
        {"training.global_batch_size": 2 * found["training.local_batch_size"] * shards * replicas}
        if accumulates
        else {}
    )


STACK = st.sampled_from(list(STACKS.values()))
SOME = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])


def lawful(edits: dict[str, Any], stack: Stack) -> Plan:
    """The plan of a lawful config; others are drawn again."""
    config = with_values(Config(), edits)
    cluster = resolve_cluster(config.cluster)
    assume(refusal(config, cluster) is None)
    return plan(config, cluster, stack=stack)


def step_s(found: Plan) -> float:
    """Seconds of a step, which are known on every GPU of the table."""
    assert found.time.step_s is not None
    return found.time.step_s


def most(found: Plan, field: str) -> int:
    """Bytes of the rank that has most of a kind."""
    return max(getattr(stage.memory, field) for stage in found.stages)


@SOME
@given(values(), STACK)
def test_seconds_of_a_step_add_up(edits: dict[str, Any], stack: Stack) -> None:
    found = lawful(edits, stack)
    time, slack = found.time, 1e-9 * step_s(found)
    parts = (time.compute_s or 0.0, time.exposed_comm_s or 0.0, time.bubble_s or 0.0)
    exposed, sent = time.per_axis or {}, time.communication_s or {}
    assert sum(parts) == pytest.approx(time.step_s, rel=1e-9)
    assert sum(exposed.values()) == pytest.approx(time.exposed_comm_s, rel=1e-9, abs=slack)
    assert min(*parts, *exposed.values(), time.recompute_s or 0.0) >= 0.0
    assert (time.recompute_s or 0.0) + (time.optimizer_s or 0.0) <= parts[0]
    assert all(seconds <= sent[axis] + slack for axis, seconds in exposed.items())
    tokens = found.tokens_per_step / step_s(found) / found.world_size
    assert found.tokens_per_s_per_gpu == pytest.approx(tokens)


@SOME
@given(values(), STACK)
def test_no_rank_uses_more_than_its_parts_nor_than_the_allocator_holds(edits: dict[str, Any], stack: Stack) -> None:
    for stage in lawful(edits, stack).stages:
        memory = stage.memory
        moving = (memory.activations_bytes, memory.logits_bytes, memory.communication_bytes)
        assert all(part is not None and part >= 0 for part in moving)
        parts = memory.static_bytes + sum(part or 0 for part in moving)
        assert memory.params_bytes < (memory.peak_bytes or 0) <= min(parts, memory.reserved_bytes or 0)


@SOME
@given(values(), STACK)
def test_verdict_rules_and_exit_code_say_the_same(edits: dict[str, Any], stack: Stack) -> None:
    config = with_values(Config(), edits)
    report = check(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"), stack=stack)
    errors = {finding.rule for finding in report.findings if finding.severity == "error"}
    warnings = {finding.rule for finding in report.findings} - errors
    assert report.exit_code == exit_code(report.findings)
    assume(report.plan is not None)
    assert report.plan is not None
    assert report.fit is not None
    assert ("M501" in errors) == (report.fit.verdict == "does not fit") == (report.plan.memory.fits is False)
    assert ("M502" in warnings) == (report.fit.verdict == "tight")
    assert all(way.plan.memory.fits for way in report.fit.ways)
    told = [report.plan.to_json(), report.fit.to_json()]
    assert all(isfinite(number) for number in numbers(told))


def numbers(value: Any) -> list[float]:
    """Every number inside of plain objects."""
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, int | float) else []


@SOME
@given(values(), STACK, st.sampled_from(sorted(RATES)), st.sampled_from([1.1, 2.0, 8.0]))
def test_faster_hardware_makes_no_step_longer(edits: dict[str, Any], stack: Stack, rate: str, times: float) -> None:
    field, unit = RATES[rate]
    usual = getattr(GPUS[edits["cluster.gpu"]], field)
    faster = lawful(edits | {f"cluster.{rate}": times * usual / unit}, stack)
    assert step_s(faster) <= (1 + NOISE) * step_s(lawful(edits, stack))


@SOME
@given(values(), STACK)
def test_recomputation_takes_no_more_memory_and_no_less_time(edits: dict[str, Any], stack: Stack) -> None:
    modes = [lawful(edits | {AC: mode}, stack) for mode in ("none", "selective", "full")]
    for less, more in pairwise(modes):
        # Weights on their way to a pipeline rank that waits for them anyway hide behind what is made again.
        assert step_s(more) >= 0.998 * step_s(less)
        assert most(more, "peak_bytes") <= BLOCK_AGAIN * most(less, "peak_bytes")
        assert most(more, "reserved_bytes") <= BLOCK_AGAIN * most(less, "reserved_bytes")


@SOME
@given(values(), STACK)
def test_smaller_nodes_make_no_step_shorter(edits: dict[str, Any], stack: Stack) -> None:
    nodes, of_each = edits["cluster.nodes"], edits["cluster.gpus_per_node"]
    assume(of_each > 1)
    smaller = lawful(edits | {"cluster.nodes": 2 * nodes, "cluster.gpus_per_node": of_each // 2}, stack)
    assert step_s(smaller) >= (1 - NOISE) * step_s(lawful(edits, stack))


@SOME
@given(values(), STACK)
def test_tokens_of_longer_sequences_take_longer(edits: dict[str, Any], stack: Stack) -> None:
    sequences = edits["training.local_batch_size"]
    assume(edits[P + "pipeline_parallel_degree"] == 1 and sequences >= 4 and "training.global_batch_size" not in edits)
    longer = {"training.seq_len": 2 * edits["training.seq_len"], "training.local_batch_size": sequences // 2}
    short, long = lawful(edits, stack), lawful(edits | longer, stack)
    assert (long.tokens_per_s_per_gpu or 0.0) <= (1 + NOISE) * (short.tokens_per_s_per_gpu or 0.0)


@SOME
@given(values(), STACK)
def test_the_fullest_rank_is_the_one_that_is_judged(edits: dict[str, Any], stack: Stack) -> None:
    found = lawful(edits, stack)
    assert found.memory.needed_bytes == max(stage.memory.needed_bytes for stage in found.stages)
    assert (found.memory.fits is False) == any(stage.memory.fits is False for stage in found.stages)


def test_plans_of_the_same_config_are_equal() -> None:
    config = with_values(Config(), {"cluster.gpu": "h200", "model.flavor": "8B"})
    assert asdict(plan(config)) == asdict(plan(config))
