"""Any small config: check() never fails, and what it lets through resolves to a whole Plan."""

from __future__ import annotations

from math import prod
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.facts import Facts
from engine.hardware import GPUS, Cluster, Gpu
from engine.keys import field_types, with_values
from engine.rules import RULES, check
from engine.shapes import parameter_count
from engine.sources import Loaded

DEGREE = st.sampled_from([1, 1, 1, 2, 3, 4, 8, -1, 0, -2])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model.name": st.sampled_from(["llama3", "llama2", "qwen3"]),
    "model.flavor": st.sampled_from(["debugmodel", "debugmodel", "debugmodel", "8B", "9B"]),
    "model.shape.n_layers": st.integers(1, 12),
    "model.shape.n_heads": st.sampled_from([1, 4, 6, 8, 16]),
    "model.shape.n_kv_heads": st.sampled_from([1, 2, 3, 4, 8]),
    "model.shape.head_dim": st.sampled_from([8, 15, 16, 32]),
    "model.shape.dim": st.sampled_from([64, 96, 250, 256]),
    "model.shape.ffn_dim": st.sampled_from([96, 100, 256, 2736]),
    "model.shape.vocab_size": st.sampled_from([1, 256, 300, 50_257]),
    "model.shape.tie_embeddings": st.booleans(),
    "training.seq_len": st.sampled_from([1, 16, 100, 250, 256]),
    "training.loss_chunks": st.integers(1, 4),
    "training.local_batch_size": st.one_of(st.integers(1, 9), st.just("auto")),
    "training.global_batch_size": st.sampled_from([-1, -1, 0, 1, 8, 64]),
    "training.steps": st.integers(1, 20),
    "training.dataset": st.sampled_from(["stdlib", "stdlib", "text", "books"]),
    "training.dtype": st.sampled_from(["float32", "bfloat16"]),
    "parallelism.data_parallel_replicate_degree": DEGREE,
    "parallelism.data_parallel_shard_degree": st.sampled_from([-1, -1, -1, 1, 2, 4, 0]),
    "parallelism.fsdp_reshard_after_forward": st.sampled_from(["default", "always", "never"]),
    "parallelism.tensor_parallel_degree": DEGREE,
    "parallelism.enable_async_tensor_parallel": st.booleans(),
    "parallelism.pipeline_parallel_degree": DEGREE,
    "parallelism.pipeline_parallel_schedule": st.sampled_from(
        ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "LoopedBFS"]
    ),
    "parallelism.pipeline_parallel_microbatch_size": st.integers(1, 3),
    "parallelism.pipeline_parallel_layers_per_stage": st.one_of(st.none(), st.integers(1, 6)),
    "parallelism.context_parallel_degree": DEGREE,
    "parallelism.context_parallel_method": st.sampled_from(["allgather", "ring", "ulysses"]),
    "parallelism.context_parallel_load_balance": st.sampled_from(["headtail", "none", "auto"]),
    "activation_checkpoint.mode": st.sampled_from(["none", "selective", "full", "memory_budget", "auto"]),
    "activation_checkpoint.selective_ac_option": st.one_of(st.just("op"), st.integers(1, 12)),
    "compile.enable": st.booleans(),
    "compile.components": st.sampled_from([("model", "loss"), ("loss",), (), ("models",), ("all",)]),
    "quantize.dense.float8.enable": st.booleans(),
    "quantize.dense.float8.recipe_name": st.sampled_from(["tensorwise", "rowwise", "rowwise_with_gw_hp"]),
    "quantize.dense.float8.enable_fsdp_float8_all_gather": st.booleans(),
    "quantize.dense.float8.filter_fqns": st.sampled_from([("output",), (), ("layers",)]),
    "quantize.dense.mx.enable": st.booleans(),
    "optimizer.name": st.sampled_from(["AdamW", "SGD"]),
    "lr_scheduler.warmup_steps": st.integers(0, 20),
    "lr_scheduler.decay_ratio": st.one_of(st.none(), st.floats(0, 1)),
    "checkpoint.load_step": st.integers(-1, 20),
    "data.mixture": st.sampled_from([{}, {"a": 1.0}]),
    "validation.enable": st.booleans(),
    "validation.dataset": st.sampled_from([None, "stdlib", "text", "books"]),
}
GPU = st.sampled_from(list(GPUS.values()))
CLOSE = {
    "model.shape.n_layers",
    "model.shape.ffn_dim",
    "training.seq_len",
    "training.local_batch_size",
    "training.global_batch_size",
    "parallelism.context_parallel_method",
    "quantize.dense.float8.enable",
    "quantize.dense.float8.filter_fqns",
}


@st.composite
def edits(draw: st.DrawFn) -> dict[str, Any]:
    """A handful of keys with values that are often wrong, alone or together."""
    keys = draw(st.lists(st.sampled_from(list(VALUES)), max_size=9, unique=True))
    return {key: draw(VALUES[key]) for key in keys}


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three nodes of up to eight GPUs."""
    return cluster_of(draw(GPU), draw(st.sampled_from([1, 2, 4, 6, 8])), nodes=draw(st.integers(1, 3)))


def cluster_of(gpu: Gpu, gpus_per_node: int, *, nodes: int = 1) -> Cluster:
    return Cluster(gpu=gpu, nodes=nodes, gpus_per_node=gpus_per_node, network_gbit_per_s_per_gpu=None)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], Cluster]:
    """Degrees whose product is the cluster, with keys that matter to pipelines and low precision beside them."""
    degrees = {
        f"parallelism.{axis}_parallel_degree": draw(st.sampled_from(values))
        for axis, values in {"tensor": [1, 2, 4], "context": [1, 1, 2, 4], "pipeline": [1, 2, 3, 4]}.items()
    }
    degrees["parallelism.data_parallel_replicate_degree"] = draw(st.sampled_from([1, 1, 2]))
    close = {
        key: draw(VALUES[key])
        for key in VALUES
        if draw(st.booleans())
        and (key.startswith("parallelism.pipeline_parallel_") or key in CLOSE)
        and key not in degrees
    }
    world = prod(degrees.values()) * draw(st.integers(1, 3))
    return {"compile.enable": draw(st.booleans()), **close, **degrees}, cluster_of(draw(GPU), world)


CASES = st.one_of(st.tuples(edits(), clusters()), layouts())


def loaded(config: Config, *broken: str) -> Loaded:
    return Loaded(config=config, origins={}, findings=(), broken=frozenset(broken), stem="titan")


ANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@ANY
@given(case=CASES)
def test_what_passes_resolves_to_a_whole_plan(case: tuple[dict[str, Any], Cluster]) -> None:
    edits, cluster = case
    config = with_values(Config(), edits)
    report = check(loaded(config), cluster=cluster)
    if report.exit_code == 2:
        event("refused")
        assert report.plan is None
        return
    event("passed")
    plan = report.plan
    assert plan is not None
    assert plan.mesh.world_size == plan.world_size == cluster.world_size
    assert sorted(layer for stage in plan.stages for layer in stage.layers) == list(range(plan.model.n_layers))
    assert all(layers for stage in plan.stages for _, layers in stage.parts)
    assert sum(stage.parameters for stage in plan.stages) == plan.parameters == parameter_count(plan.model)
    assert plan.gradient_accumulation_steps >= 1
    data_ranks = plan.mesh.dp_replicate * plan.mesh.dp_shard
    assert plan.gradient_accumulation_steps * plan.local_batch_size * data_ranks == plan.global_batch_size
    assert plan.microbatches * plan.microbatch_size == plan.local_batch_size
    assert plan.tokens_per_step == plan.global_batch_size * config.training.seq_len
    assert (config.training.seq_len // plan.mesh.cp) % plan.mesh.tp == 0
    assert plan.model.n_kv_heads % plan.mesh.tp == plan.model.n_heads % plan.mesh.tp == 0


@ANY
@given(case=CASES)
def test_every_finding_can_be_said_and_its_edit_ends_it(case: tuple[dict[str, Any], Cluster]) -> None:
    edits, cluster = case
    config = with_values(Config(), edits)
    by_id = {rule.id: rule for rule in RULES}
    for finding in check(loaded(config), cluster=cluster).findings:
        event(finding.rule)
        assert "{" not in finding.message + finding.fix
        facts = Facts(config, cluster)
        edit = by_id[finding.rule].edit(facts)
        if edit is None or "cluster.nodes" in edit:
            continue  # the cluster is given here, so more of it cannot be tried
        after = check(loaded(with_values(config, edit)), cluster=cluster).findings
        assert finding.rule not in {other.rule for other in after}


@ANY
@given(case=CASES, key=st.sampled_from(sorted(field_types())))
def test_a_key_that_did_not_parse_only_silences(case: tuple[dict[str, Any], Cluster], key: str) -> None:
    edits, cluster = case
    config = with_values(Config(), edits)
    whole = {finding.rule for finding in check(loaded(config), cluster=cluster).findings}
    assume(whole)
    partly = check(loaded(config, key), cluster=cluster)
    assert partly.plan is None
    assert {finding.rule for finding in partly.findings} <= whole
