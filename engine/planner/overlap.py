"""Whether tensor parallel communicates inside its matrix products, from the config alone.

Knows what stands in the way although it was asked for; build and features ask here, so that what is said
is what is done. Does not know how it is done (parallel/async_tp.py), nor seconds (messages).
"""

from __future__ import annotations

from engine.config import Config
from engine.planner.stack import Stack


def idle_async_tp(config: Config) -> str | None:
    """Why async tensor parallel has no effect here, or None where it is in force, if it was asked for."""
    if config.parallelism.tensor_parallel_degree == 1:
        return "tp=1"
    if config.quantize.dense.float8.enable:
        return "quantize.dense.float8.enable is on, and fused products are in the precision of the weights"
    if config.quantize.dense.mx.enable:
        return "quantize.dense.mx.enable is on, and fused products are in the precision of the weights"
    return None


def has_async_tp(config: Config) -> bool:
    """Whether communication is inside the products."""
    return config.parallelism.enable_async_tensor_parallel and idle_async_tp(config) is None


def tensor_overlap(config: Config, stack: Stack) -> float:
    """The share of a block's tensor-parallel communication that its products hide in an implementation.

    torchtitan's compiler pass fuses float8 products too, and needs the compiler; Megatron overlaps in its own kernels.
    """
    parallelism = config.parallelism
    if not parallelism.enable_async_tensor_parallel:
        return 0.0
    in_force = {
        "titan": has_async_tp(config),
        "torchtitan": config.compile.enable,
    }.get(stack.name, True)
    float8 = config.quantize.dense.float8
    by_rows = stack.async_tp_by_rows if float8.enable and float8.recipe_name != "tensorwise" else 1.0
    return stack.async_tp_hides * by_rows if in_force else 0.0
