"""Rules H7xx: a sound config that the hardware cannot compute. They lead to exit code 3."""

from __future__ import annotations

from engine.hardware import GPUS
from engine.rules.row import Rule

HARDWARE_RULES: tuple[Rule, ...] = (
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
        id="H705",
        key="cluster.fp8_tflops",
        needs="cluster",
        broken=lambda f: (
            f.config.cluster.fp8_tflops is not None
            and (f.known_cluster.gpu.name == "cpu" or GPUS[f.known_cluster.gpu.name].fp8_flops_per_s is None)
        ),
        message="{cluster.gpu.name} cannot multiply float8, so fp8_tflops = {given} is not its rate",
        fix="leave fp8_tflops out, or set cluster.gpu to h100-80 or later",
        words=lambda f: {"given": f"{f.config.cluster.fp8_tflops:g}"},
        why="float8 matrix products came with Hopper",
    ),
)
