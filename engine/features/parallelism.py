"""Features of [parallelism]: which rank holds what, and what is said of it."""

from __future__ import annotations

from engine.facts import Facts
from engine.features.row import Feature, axis, unsharded
from engine.planner.overlap import idle_async_tp
from engine.planner.update import makes_copies

_TP = axis("tp", "tensor_parallel_degree")
_PP = axis("pp", "pipeline_parallel_degree")
_CP = axis("cp", "context_parallel_degree")


def _shards(f: Facts) -> str:
    if not f.has("mesh"):
        return ""
    mesh = f.known_mesh
    return f"FSDP over {mesh.fsdp} ranks" + (f", {mesh.dp_replicate} replicas" if mesh.dp_replicate > 1 else "")


def _replicas(f: Facts) -> str:
    if not f.has("mesh"):
        return ""
    mesh = f.known_mesh
    return f"{mesh.dp_replicate} replicas of " + (f"{mesh.fsdp} shards (HSDP)" if mesh.fsdp > 1 else "the whole model")


def _tensor(f: Facts) -> str:
    loss = "" if f.config.parallelism.disable_loss_parallel else ", and the loss by vocabulary"
    return f"heads, hidden units and the sequence over {f.tp} ranks{loss}"


def _stages(f: Facts) -> str:
    if not f.has("pipeline"):
        return ""
    least, most = min(f.layer_counts), max(f.layer_counts)
    layers = f"{least}" if least == most else f"{least} to {most}"
    return f"{f.stage_count} stages of {layers} layers on {f.pp} ranks"


def _microbatches(f: Facts) -> str:
    return f"{f.microbatches} microbatches a rank" if f.has("batch") else ""


def _frees_copies(f: Facts) -> bool:
    return f.has("mesh") and makes_copies(f.config, f.known_mesh)


def _context(f: Facts) -> str:
    held = "an early and a late piece of it" if f.balances else "one piece of it"
    return f"each sequence over {f.cp} ranks, {held} on each: {f.config.parallelism.context_parallel_method}"


def _ulysses_balance(f: Facts) -> str | None:
    if f.cp > 1 and f.config.parallelism.context_parallel_method == "ulysses":
        return "ulysses gives every rank whole sequences of some heads: the work is equal already"
    return "cp=1" if f.cp == 1 else None


PARALLELISM: tuple[Feature, ...] = (
    Feature(
        key="parallelism.data_parallel_replicate_degree",
        note=_replicas,
    ),
    Feature(
        key="parallelism.data_parallel_shard_degree",
        asked=lambda f: f.has("mesh") and f.known_mesh.dp_shard > 1,
        note=_shards,
    ),
    Feature(
        key="parallelism.fsdp_reshard_after_forward",
        idle=lambda f: None if _frees_copies(f) else unsharded(f),
        note=lambda f: "a block's copies to compute with are made for each of its passes" if _frees_copies(f) else "",
    ),
    Feature(key="parallelism.tensor_parallel_degree", note=_tensor),
    Feature(
        key="parallelism.enable_async_tensor_parallel",
        idle=lambda f: idle_async_tp(f.config),
        note=lambda _: "communication inside the products of every block; build counts the fused operators",
    ),
    Feature(
        key="parallelism.disable_loss_parallel",
        idle=_TP,
        note=lambda _: "every tensor rank has the logits of the whole vocabulary",
    ),
    Feature(key="parallelism.pipeline_parallel_degree", note=_stages),
    Feature(key="parallelism.pipeline_parallel_schedule", idle=_PP, note=_microbatches),
    Feature(key="parallelism.pipeline_parallel_microbatch_size", idle=_PP),
    Feature(key="parallelism.pipeline_parallel_layers_per_stage", idle=_PP),
    Feature(key="parallelism.context_parallel_degree", note=_context),
    Feature(key="parallelism.context_parallel_method", idle=_CP),
    Feature(key="parallelism.context_parallel_load_balance", idle=_ulysses_balance),
)
