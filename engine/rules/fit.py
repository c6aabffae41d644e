"""Rules H7xx and M5xx: a sound config that the hardware cannot hold or compute. They lead to exit code 3."""

from __future__ import annotations

from typing import Any

from engine.config import Dtype
from engine.facts import Facts
from engine.hardware import GIB, GPUS
from engine.planner.memory import static_memory
from engine.planner.plan import held_parameters
from engine.rules.row import Rule

SHARD = "parallelism.data_parallel_shard_degree"
MOST_TIMES = 4096


def _fits(f: Facts, fsdp: int, dtype: Dtype) -> bool:
    """Whether parameters, gradients and optimizer states would fit every rank in another sharding or precision."""
    plan = f.plan
    return all(
        static_memory(
            held_parameters(plan.model, stage.parts, stage_count=plan.stage_count).values(),
            tp=plan.mesh.tp,
            fsdp=fsdp,
            dtype=dtype,
            optimizer=f.config.optimizer.name,
            capacity_bytes=plan.memory.capacity_bytes,
        ).fits
        is not False
        for stage in plan.stages
    )


def _more_shards(f: Facts) -> dict[str, Any] | None:
    """The least change of layout that makes it fit: replicas turned into shards, else more nodes."""
    mesh, dtype = f.plan.mesh, f.config.training.dtype
    for times in range(2, mesh.dp_replicate + 1):
        if mesh.dp_replicate % times == 0 and _fits(f, mesh.fsdp * times, dtype):
            return {
                "parallelism.data_parallel_replicate_degree": mesh.dp_replicate // times,
                SHARD: mesh.dp_shard * times,
            }
    times = 2
    while times <= MOST_TIMES:
        batch = f.config.training.global_batch_size
        if _fits(f, mesh.fsdp * times, dtype) and (batch == -1 or batch % (f.batch_step * times) == 0):
            return {"cluster.nodes": f.known_cluster.nodes * times, SHARD: mesh.dp_shard * times}
        times *= 2
    return None


def _fit_words(f: Facts) -> dict[str, object]:
    memory = f.plan.memory
    parts = {
        "parameters": memory.params_bytes,
        "gradients": memory.grads_bytes,
        "optimizer states": memory.optimizer_bytes,
    }
    ways: list[str] = []
    edit = _more_shards(f)
    if edit is not None and "cluster.nodes" in edit:
        gpus = edit["cluster.nodes"] * f.known_cluster.gpus_per_node
        ways.append(
            f"use {gpus} GPUs (cluster.nodes = {edit['cluster.nodes']}) with data_parallel_shard_degree = {edit[SHARD]}"
        )
    elif edit is not None:
        ways.append(", ".join(f"set {key.rpartition('.')[2]} to {value}" for key, value in edit.items()))
    wide = f.config.training.dtype == "float32"
    if wide and _fits(f, f.plan.mesh.fsdp, "bfloat16"):
        ways.append("set training.dtype to bfloat16")
    return {
        "sum": " + ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size),
        "total": f"{memory.static_bytes / GIB:.1f}",
        "capacity": f"{memory.capacity_bytes / GIB:.1f}",
        "way_out": ", or ".join(ways) or "choose a smaller model or a GPU with more memory",
    }


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
        also=("model.flavor",),
        needs="plan",
        broken=lambda f: f.plan.memory.static_bytes > f.plan.memory.capacity_bytes,
        message="{sum} = {total} GiB on one rank exceed the {capacity} GiB of {cluster.gpu.name}, before activations",
        fix="{way_out}",
        words=_fit_words,
        edit=_more_shards,
        why="what a rank keeps all through a step must fit its memory",
    ),
)
