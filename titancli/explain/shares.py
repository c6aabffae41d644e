"""Which keys the memory and the time of a step answer to, part by part.

Knows the parts of a plan and the keys that move each. Does not know numbers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titancli import charts

if TYPE_CHECKING:
    from engine.planner.plan import Plan

_P = "parallelism."
_SHARDS = (f"{_P}data_parallel_shard_degree", f"{_P}tensor_parallel_degree", f"{_P}pipeline_parallel_degree")
_PRODUCTS = "training.mixed_precision_param"
_WORK = ("training.local_batch_size", "training.seq_len", f"{_P}pipeline_parallel_microbatch_size")


@dataclass(frozen=True, slots=True)
class Share:
    """One part, what it comes to (bytes or seconds), and the keys that move it."""

    name: str
    amount: float
    keys: tuple[str, ...]


def memory_shares(plan: Plan) -> list[Share]:
    """What the fullest rank holds, each part at its most; parts that are not known are left out."""
    from engine.planner.update import holds_whole

    memory, alone = plan.memory, holds_whole(plan.mesh)
    # Gradients of a rank that shares no weight stand as backward left them, or as several were added up.
    made = "training.mixed_precision_reduce" if plan.backwards > 1 else _PRODUCTS
    parts: list[tuple[str, int | None, tuple[str, ...]]] = [
        ("weights", memory.masters_bytes, ("training.dtype", *_SHARDS)),
        ("copies of weights to compute with", memory.copies_bytes, (_PRODUCTS, *_SHARDS)),
        ("gradients", memory.grads_bytes, (made if alone else "training.dtype", *_SHARDS)),
        ("optimizer states", memory.optimizer_bytes, ("optimizer.name", "training.dtype", *_SHARDS)),
        (
            "activations",
            memory.activations_bytes,
            ("activation_checkpoint.mode", *_WORK, f"{_P}context_parallel_degree", "compile.enable"),
        ),
        (
            "logits",
            memory.logits_bytes,
            ("training.loss_chunks", *_WORK[:2], f"{_P}disable_loss_parallel"),
        ),
        (
            "buffers" if alone else "gathered weights, buffers",
            memory.communication_bytes,
            (_PRODUCTS, "optimizer.implementation")
            if alone
            else (f"{_P}fsdp_reshard_after_forward", _PRODUCTS, "training.mixed_precision_reduce"),
        ),
    ]
    return [Share(name, size, _that_matter(plan, keys)) for name, size, keys in parts if size]


def time_shares(plan: Plan) -> list[Share]:
    """Where the seconds of a step go; none where they are not known."""
    if plan.time.step_s is None:
        return []
    compute = (*_WORK[:2], "quantize.dense.float8.enable", "compile.enable", f"{_P}tensor_parallel_degree")
    keys: dict[str, tuple[str, ...]] = {
        "compute": compute,
        "recompute": ("activation_checkpoint.mode",),
        "optimizer": ("optimizer.name", "optimizer.implementation", f"{_P}data_parallel_shard_degree"),
        "pipeline bubble": (f"{_P}pipeline_parallel_schedule", *_WORK[:1], _WORK[2]),
    }
    for axis, name in charts.AXES.items():
        keys[f"exposed: {name}"] = axis_keys(axis)
    return [Share(name, value, _that_matter(plan, keys.get(name, ()))) for name, value in charts.time_parts(plan.time)]


def axis_keys(axis: str) -> tuple[str, ...]:
    """The keys that decide what an axis sends, its degree first."""
    return {
        "tp": (f"{_P}tensor_parallel_degree", f"{_P}enable_async_tensor_parallel"),
        "cp": (f"{_P}context_parallel_degree", f"{_P}context_parallel_method"),
        "dp_shard": (f"{_P}data_parallel_shard_degree", f"{_P}fsdp_reshard_after_forward"),
        "dp_replicate": (f"{_P}data_parallel_replicate_degree", "training.mixed_precision_reduce"),
        "pp": (f"{_P}pipeline_parallel_degree", f"{_P}pipeline_parallel_schedule"),
    }[axis]


def short_name(key: str) -> str:
    """A key without its section where its name says enough: `seq_len`, but `float8.enable`."""
    *_, section, name = key.split(".")
    return name if "_" in name else f"{section}.{name}"


def _that_matter(plan: Plan, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Without the keys of axes of one rank."""
    degrees = {"pipeline_": plan.mesh.pp, "tensor_": plan.mesh.tp, "context_": plan.mesh.cp}
    idle = tuple(f"{_P}{word}" for word, degree in degrees.items() if degree == 1)
    return tuple(key for key in keys if not key.startswith(idle))
