"""What a layout is run with: recomputation, resharding, float8, compile and async TP.

Knows which of them go together and what each is called in a config. Does not know what they cost or save.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

from engine.config import Config, ScheduleName
from engine.hardware import Cluster
from engine.planner.recompute import Mode
from engine.planner.schedule import ZERO_BUBBLE
from engine.planner.search.layouts import CP, LAYERS, PP, REPLICATE, SCHEDULE, SHARD, TP, Free, Layout
from engine.planner.search.question import GOALS, Question
from engine.planner.update import copy_bytes, holds_whole

Reshard: TypeAlias = Literal["default", "always", "never"]

MODE = "activation_checkpoint.mode"
RESHARD, ASYNC_TP = "parallelism.fsdp_reshard_after_forward", "parallelism.enable_async_tensor_parallel"
COMPILE = "compile.enable"
FLOAT8, FLOAT8_GATHER = "quantize.dense.float8.enable", "quantize.dense.float8.enable_fsdp_float8_all_gather"
LOCAL_BATCH, GLOBAL_BATCH = "training.local_batch_size", "training.global_batch_size"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"

SEARCHED: tuple[str, ...] = (
    *(REPLICATE, SHARD, TP, CP, PP, SCHEDULE, LAYERS, MICROBATCH, RESHARD, ASYNC_TP),
    *(MODE, COMPILE, FLOAT8, FLOAT8_GATHER, LOCAL_BATCH),
)
"""The keys that a search gives values to; a question may fix any of them."""

# Schedules that many have trained with for long; the others are young, or hold far more than they save.
_PROVEN: frozenset[ScheduleName] = frozenset({"1F1B", "Interleaved1F1B"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One way to run a layout. `float8` is tensorwise, with FSDP's all-gather in float8 where it shards."""

    mode: Mode = "none"
    reshard: Reshard = "default"
    float8: bool = False
    compiled: bool = False
    async_tp: bool = False

    def values(self, layout: Layout) -> dict[str, Any]:
        """The dotted keys that say so."""
        values: dict[str, Any] = {MODE: self.mode, RESHARD: self.reshard, COMPILE: self.compiled}
        if self.float8:
            values |= {FLOAT8: True, FLOAT8_GATHER: layout.mesh.fsdp > 1}
        return values | ({ASYNC_TP: True} if self.async_tp else {})


def all_options(question: Question, layout: Layout) -> Iterator[Options]:
    """All that go with a layout and make a difference, within what the goal tries."""
    free, goal = Free(question), GOALS[question.goal]
    splits = layout.mesh.pp > 1 and layout.schedule in ZERO_BUBBLE
    modes: tuple[Mode, ...] = ("none",) if splits else ("none", "selective", "full")
    for compiled, float8, mode, reshard in product(
        free.of(COMPILE, (True, False) if goal.compiles and not splits else (False,)),
        free.of(FLOAT8, (True, False) if goal.bold and has_float8(question.config, question.cluster) else (False,)),
        free.of(MODE, modes),
        free.of(RESHARD, _reshards(question, layout, splits=splits)),
    ):
        for async_tp in free.of(ASYNC_TP, _async_tps(question, layout, compiled=compiled, float8=float8)):
            yield Options(mode=mode, reshard=reshard, float8=float8, compiled=compiled, async_tp=async_tp)


def plain_options(question: Question, layout: Layout) -> list[Options]:
    """Those that a layout is first judged with: compiled and fused where it can be, and resharded as usual."""
    options = list(all_options(question, layout))
    compiled = any(each.compiled for each in options)
    usual = "default" if any(each.reshard == "default" for each in options) else options[0].reshard if options else ""
    fused = {(each.mode, each.float8) for each in options if each.async_tp}
    return [
        each
        for each in options
        if each.compiled == compiled and each.reshard == usual and each.async_tp == ((each.mode, each.float8) in fused)
    ]


def experience(layout: Layout, options: Options) -> int:
    """How many things a layout uses that few have trained with for long, or that can go wrong in ways of their own.

    A pipeline counts for two: its microbatches and its schedule.
    """
    mesh = layout.mesh
    schedule = 2 * (mesh.pp > 1) + (layout.schedule not in _PROVEN) + (layout.stages_a_rank > 2)
    return options.float8 + options.async_tp + (options.reshard != "default") + (mesh.cp > 1) + schedule


def complexity(layout: Layout, options: Options) -> int:
    """How many things a person has to know to follow what runs, FSDP and recomputation being none.

    An axis counts for two, so that compile or replicas come before it.
    """
    mesh = layout.mesh
    axes = 2 * ((mesh.tp > 1) + (mesh.pp > 1) + (mesh.cp > 1)) + (mesh.dp_replicate > 1)
    return axes + (layout.stages_a_rank > 1) + options.compiled + experience(layout, options)


def has_float8(config: Config, cluster: Cluster) -> bool:
    """Whether the hardware multiplies float8, and no other low precision is asked for."""
    return cluster.gpu.fp8_flops_per_s is not None and not config.quantize.dense.mx.enable


def _reshards(question: Question, layout: Layout, *, splits: bool) -> tuple[Reshard, ...]:
    """`default` is `never` under a pipeline and `always` without one; the other of the two is a choice.

    Where nothing is sharded, copies are kept unless they are to be made for each use.
    """
    if holds_whole(layout.mesh) and copy_bytes(question.config) and not splits:
        return ("default", "always")
    if layout.mesh.fsdp == 1 or splits:
        return ("default",)
    return ("default", "always") if layout.mesh.pp > 1 else ("default", "never")


def _async_tps(question: Question, layout: Layout, *, compiled: bool, float8: bool) -> tuple[bool, ...]:
    """Async TP is in force only between products of the weights' own precision, and needs the compiler and NVLink."""
    can = layout.mesh.tp > 1 and compiled and not float8 and question.cluster.gpu.nvlink_bytes_per_s is not None
    return (True, False) if can and GOALS[question.goal].bold else (False,)
