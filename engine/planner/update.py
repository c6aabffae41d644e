"""Weights that a rank shares with no other data or context rank, and the optimizer's update of any: bytes an element.

Knows what parallel/whole holds beside such weights and in which precision their gradients stand, what an update moves,
and what it takes for itself. Does not know how many weights there are, nor rates (compute).

A kernel of one pass (AdamW or Adam, fused, on a GPU) reads gradient, weight and both means, writes the last three, and
the copy of the weight beside them. Over float32 weights computed with in bfloat16 these are 2 + 12 + 12 + 2 = 28 bytes
an element; 30 where gradients were added up in float32; 14 where all is bfloat16.
"""

from __future__ import annotations

from engine.config import Config, Dtype
from engine.planner.memory import BYTES, OPTIMIZER_STATES
from engine.planner.mesh import Mesh
from engine.planner.stack import TITAN, Stack


def holds_whole(mesh: Mesh, stack: Stack = TITAN) -> bool:
    """Whether ranks compute with weights as they are, without FSDP: no other rank shares a weight or its gradient."""
    return stack.one_rank == "copies" and mesh.fsdp * mesh.dp_replicate == 1


def copy_bytes(config: Config) -> int:
    """Beside a weight that no other rank shares, its copy in the precision of products; 0 where it has that itself."""
    training = config.training
    return BYTES[training.mixed_precision_param] if training.mixed_precision_param != training.dtype else 0


def makes_copies(config: Config, mesh: Mesh, stack: Stack = TITAN) -> bool:
    """Whether the copies of a block's weights, and of a table that is not the head's, are there for each use only."""
    always = config.parallelism.fsdp_reshard_after_forward == "always"
    return always and holds_whole(mesh, stack) and copy_bytes(config) > 0


def making_bytes(config: Config, *, blocks: int, table: int, backwards: int) -> int:
    """Moved to make such copies in a step: of the elements of all blocks before each forward and each backward."""
    moved = BYTES[config.training.dtype] + copy_bytes(config)
    return backwards * (2 * blocks + table) * moved


def gradient_dtype(config: Config, *, adds_up: bool) -> Dtype:
    """In what a gradient of such a weight stands until the update: as backward made it, or as several were added up."""
    return config.training.mixed_precision_reduce if adds_up else config.training.mixed_precision_param


def adding_bytes(config: Config, *, backwards: int) -> float:
    """Moved for an element over the backwards of a step, to add up its gradients where each left one.

    A first one is cast, which takes twice as long as its bytes where it is widened (2.1 of 4.3 TB/s on an H200); the
    others are read, and their sum is read and written. That mixed precisions slow these as much is not measured.
    """
    if backwards == 1:
        return 0.0
    given, summed = (BYTES[gradient_dtype(config, adds_up=adds_up)] for adds_up in (False, True))
    first = 0 if given == summed else given + summed
    return (first + (backwards - 1) * (given + 2 * summed)) * (2 if summed > given else 1)


def updates_in_place(config: Config) -> bool:
    """Whether a GPU updates in one kernel that makes nothing beside what it updates."""
    return config.optimizer.implementation == "fused" and OPTIMIZER_STATES[config.optimizer.name] > 0


def taken_bytes(config: Config, weights: int, *, largest: int, gradient: Dtype, on_gpu: bool) -> int:
    """What an update of so many elements takes for itself; `largest` are those of the largest weight.

    torch's kernels want gradients cast; of all weights at once `foreach` makes one tensor more, and one after the other
    Adam makes two and SGD one (weight decay).
    """
    if on_gpu and updates_in_place(config):
        return 0
    width, implementation = BYTES[config.training.dtype], config.optimizer.implementation
    cast = weights if gradient != config.training.dtype else 0
    if implementation == "fused":
        return cast * width
    made = weights if implementation == "foreach" else largest * max(1, OPTIMIZER_STATES[config.optimizer.name])
    return (cast + made) * width


def moved_bytes(config: Config, *, gradient: Dtype, copy: int, on_gpu: bool) -> int:
    """Moved by the update of an element and of its copy of so many bytes.

    Kernels that are not fused read and write each tensor about twice.
    """
    width, given = BYTES[config.training.dtype], BYTES[gradient]
    passes = 2 + 2 * OPTIMIZER_STATES[config.optimizer.name]
    if on_gpu and updates_in_place(config):
        return given + passes * width + copy
    often = 1 if config.optimizer.implementation == "fused" else 2
    cast = given + width if gradient != config.training.dtype else 0
    return often * (1 + passes) * width + cast + (width + copy if copy else 0)
