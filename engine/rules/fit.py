"""Rules H7xx and M5xx: a sound config that the hardware cannot hold or compute. They lead to exit code 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.facts import Facts
from engine.hardware import GIB, GPUS
from engine.keys import with_values
from engine.planner.held import GPU_ROOM
from engine.planner.memory import Memory
from engine.rules.degrees import SHARD
from engine.rules.row import Rule

RECOMPUTE = "activation_checkpoint.mode"
LOCAL_BATCH, GLOBAL_BATCH = "training.local_batch_size", "training.global_batch_size"
MOST_TIMES = 4096

Enough = Callable[[Memory], bool]


def _fits(memory: Memory) -> bool:
    return memory.fits is not False


def _is_ample(memory: Memory) -> bool:
    return memory.needed_bytes <= GPU_ROOM * memory.capacity_bytes


def _changed(f: Facts, edit: dict[str, Any]) -> Facts:
    """The facts of a config with an edit; more nodes are more of the same."""
    config, cluster = with_values(f.config, edit), f.known_cluster
    return Facts(config, replace(cluster, nodes=edit.get("cluster.nodes", cluster.nodes)), stack=f.stack)


def _is_enough(f: Facts, edit: dict[str, Any], enough: Enough) -> bool:
    """Whether an edit leaves a layout that stands, and that is enough."""
    changed = _changed(f, edit)
    if not changed.has("plan"):
        return False
    whole = changed.config.training.global_batch_size
    return (whole == -1 or whole % changed.batch_step == 0) and enough(changed.plan.memory)


def _more_recompute(f: Facts) -> list[dict[str, Any]]:
    """More recomputation than the config asks for, the least first."""
    mode = f.config.activation_checkpoint.mode
    return [{RECOMPUTE: more} for more in {"none": ("selective", "full"), "selective": ("full",)}.get(mode, ())]


def _smaller_batch(f: Facts) -> list[dict[str, Any]]:
    """The local batch halved and halved again, and the optimizer step as it was: what is left out accumulates."""
    plan, size = f.plan, f.config.training.local_batch_size
    if size == "auto" or plan.mesh.pp > 1:
        return []
    kept = {GLOBAL_BATCH: plan.global_batch_size}
    edits: list[dict[str, Any]] = []
    while size % 2 == 0:
        size //= 2
        edits.append({LOCAL_BATCH: size} | kept)
    return edits


def _more_shards(f: Facts) -> list[dict[str, Any]]:
    """Replicas turned into shards, else more nodes."""
    mesh = f.plan.mesh
    edits: list[dict[str, Any]] = [
        {
            "parallelism.data_parallel_replicate_degree": mesh.dp_replicate // times,
            SHARD: mesh.dp_shard * times,
        }
        for times in range(2, mesh.dp_replicate + 1)
        if mesh.dp_replicate % times == 0
    ]
    times = 2
    while times <= MOST_TIMES:
        edits.append({"cluster.nodes": f.known_cluster.nodes * times, SHARD: mesh.dp_shard * times})
        times *= 2
    return edits


def _ways(f: Facts, enough: Enough) -> list[dict[str, Any]]:
    """The least change of each kind that is enough, those that cost least first."""
    more, smaller = _more_recompute(f), _smaller_batch(f)
    both = [recompute | batch for batch in smaller for recompute in more[-1:]]
    found: list[dict[str, Any]] = []
    for edits in (more, smaller, both, _more_shards(f)):
        if edits is both and found:
            continue
        way = next((edit for edit in edits if _is_enough(f, edit, enough)), None)
        if way is not None:
            found.append(way)
    if f.config.training.dtype == "float32" and _is_enough(f, {"training.dtype": "bfloat16"}, enough):
        found.append({"training.dtype": "bfloat16"})
    return found


def _best_ways(f: Facts) -> list[dict[str, Any]]:
    """Changes after which there is ample room, or where there are none, those that just fit."""
    return _ways(f, _is_ample) or ([] if _fits(f.plan.memory) else _ways(f, _fits))


def _least(f: Facts) -> dict[str, Any] | None:
    return next(iter(_best_ways(f)), None)


def _words(f: Facts) -> dict[str, object]:
    memory = f.plan.memory
    parts = {
        "parameters": memory.params_bytes,
        "gradients": memory.grads_bytes,
        "optimizer states": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        "logits": memory.logits_bytes,
        "gathered weights and buffers": memory.communication_bytes,
    }
    left = memory.capacity_bytes - memory.needed_bytes
    return {
        "parts": ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size),
        "peak": f"{(memory.peak_bytes or 0) / GIB:.1f}",
        "moment": memory.moment,
        "needed": f"{memory.needed_bytes / GIB:.1f}",
        "margin": f"{100 * left / memory.capacity_bytes:.0f} % are left for what the allocator does not count"
        if left >= 0
        else "it would give memory back and take it again in every step",
        "capacity": f"{memory.capacity_bytes / GIB:.1f}",
        "way_out": ", or ".join(_told(f, way) for way in _best_ways(f))
        or "choose a smaller model, a shorter seq_len or a GPU with more memory",
    }


def _told(f: Facts, way: dict[str, Any]) -> str:
    if "cluster.nodes" in way:
        gpus = way["cluster.nodes"] * f.known_cluster.gpus_per_node
        return (
            f"use {gpus} GPUs (cluster.nodes = {way['cluster.nodes']}) with data_parallel_shard_degree = {way[SHARD]}"
        )
    return "set " + " and ".join(f"{key} to {value}" for key, value in way.items())


FIT_RULES: tuple[Rule, ...] = (
    Rule(
        id="H701",
        key="cluster.gpu",
        broken=lambda f: f.unknown_gpu is not None,
        message="this machine's {unknown_gpu} is not in titan's table of GPUs",
        fix="set cluster.gpu to the nearest of {known}",
        words=lambda _: {"known": ", ".join(GPUS)},
        why="a plan needs the memory and the speed of the GPU",
    ),
    Rule(
        id="H702",
        key="quantize.dense.float8.enable",
        needs="cluster",
        broken=lambda f: (
            f.config.quantize.dense.float8.enable
            and not f.config.quantize.dense.float8.emulate
            and f.known_cluster.gpu.name != "cpu"
            and f.known_cluster.gpu.fp8_flops_per_s is None
        ),
        message="{cluster.gpu.name} cannot multiply float8",
        fix="set cluster.gpu to h100-80 or later, quantize.dense.float8.emulate to true, or enable to false",
        edit=lambda _: {"quantize.dense.float8.emulate": True},
        why="float8 matrix products came with Hopper; emulated they give the same numbers, and no speed",
    ),
    Rule(
        id="H703",
        key="quantize.dense.mx.enable",
        needs="cluster",
        broken=lambda f: (
            f.config.quantize.dense.mx.enable
            and not f.config.quantize.dense.mx.emulate
            and f.config.quantize.dense.mx.recipe_name != "mxfp8_emulated"
            and not f.known_cluster.gpu.has_mxfp8
        ),
        message="{cluster.gpu.name} cannot multiply MXFP8",
        fix="set cluster.gpu to b200 or gb200, quantize.dense.mx.emulate to true, or enable to false",
        edit=lambda _: {"quantize.dense.mx.emulate": True},
        why="block-scaled products came with Blackwell; emulated they give the same numbers, and no speed",
    ),
    Rule(
        id="H704",
        key="parallelism.enable_async_tensor_parallel",
        needs="cluster",
        broken=lambda f: (
            f.config.parallelism.enable_async_tensor_parallel
            and f.tp > 1
            and f.known_cluster.gpu.nvlink_bytes_per_s is None
        ),
        message="{cluster.gpu.name} has no memory that ranks share over NVLink, as enable_async_tensor_parallel needs",
        fix="set enable_async_tensor_parallel to false",
        edit=lambda _: {"parallelism.enable_async_tensor_parallel": False},
        why="the fused operators read a neighbour's memory directly, and have no CPU kernels",
    ),
    Rule(
        id="M501",
        key=SHARD,
        also=(LOCAL_BATCH, RECOMPUTE, "model.flavor"),
        needs="plan",
        broken=lambda f: not _fits(f.plan.memory),
        message="{peak} GiB on one rank at its fullest ({moment}) exceed the {capacity} GiB of {cluster.gpu.name}: "
        "at most {parts}",
        fix="{way_out}",
        words=_words,
        edit=_least,
        why="what a rank uses at one moment of a step must fit its memory",
    ),
    Rule(
        id="M502",
        key=SHARD,
        also=(LOCAL_BATCH, RECOMPUTE, "model.flavor"),
        needs="plan",
        severity="warning",
        broken=lambda f: _fits(f.plan.memory) and not _is_ample(f.plan.memory),
        message="by plan the allocator holds {needed} of the {capacity} GiB of {cluster.gpu.name}: {margin}",
        fix="{way_out}",
        words=_words,
        edit=_least,
        why="the CUDA context, NCCL and cuBLAS take 0.5 to 2 GiB, and the plan may err by a few percent",
    ),
)
