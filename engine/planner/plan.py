"""The Plan: every number of a run that the config leaves open, resolved once.

Knows mesh, batch, accumulation, microbatches and recomputation, layers, parameters and memory of each
pipeline rank, and the time of a step. Assumes a config that the rules let through; does not check it again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.config import Config
from engine.hardware import Cluster, resolve_cluster
from engine.planner.batch import resolve, smallest_batch
from engine.planner.held import Held, Parts, Rank, held_parameters, ranks_of
from engine.planner.memory import BYTES, Memory
from engine.planner.mesh import Mesh, resolve_mesh
from engine.planner.recompute import Recompute
from engine.planner.schedule import stages_of_a_rank
from engine.planner.stack import TITAN, Stack, StackName
from engine.planner.timing import Time, accumulation_steps, mfu_pct, speed_of, time_of
from engine.shapes import ModelShape, parameter_count, shape_of

__all__ = ["Mesh", "Parts", "Plan", "Stage", "Time", "held_parameters", "plan", "resolve_local_batch", "resolve_mesh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline rank: the layers of all its stages, in the order it runs them.

    `parts` are its stages one by one (index of the stage, its layers); `parameters` are
    unsharded and sum to the model's over all ranks; `local_parameters` are what one rank keeps.
    """

    pp_rank: int
    layers: tuple[int, ...]
    parts: Parts
    parameters: int
    local_parameters: int
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run. `memory` is that of the fullest pipeline rank; `calibration` the file of measured rates."""

    gpu: str
    stack: StackName
    world_size: int
    mesh: Mesh
    model: ModelShape
    local_batch_size: int
    microbatch_size: int
    microbatches: int
    gradient_accumulation_steps: int
    global_batch_size: int
    tokens_per_step: int
    parameters: int
    stage_count: int
    recompute: Recompute
    stages: tuple[Stage, ...]
    memory: Memory
    time: Time
    tokens_per_s_per_gpu: float | None = None
    mfu_pct: float | None = None
    calibration: str | None = None

    @property
    def backwards(self) -> int:
        """After how many backwards of a step weights are updated."""
        return self.microbatches * self.gradient_accumulation_steps

    def to_json(self) -> dict[str, Any]:
        """The plan as the plain object of `titan validate --json`."""
        return asdict(self)


def resolve_local_batch(config: Config, stage_count: int) -> int:
    """`training.local_batch_size` as a number where the hardware is not known.

    `auto` is then the smallest batch that the pipeline schedule takes; the Plan's own is the planner's choice.
    """
    size = config.training.local_batch_size
    return size if size != "auto" else smallest_batch(config, stage_count)


def plan(config: Config, cluster: Cluster | None = None, *, stack: Stack = TITAN) -> Plan:
    """Resolves a config that the rules let through.

    `cluster` replaces the config's own (another GPU, same count); `stack` is the implementation whose memory
    and time are predicted.
    """
    cluster = cluster or resolve_cluster(config.cluster)
    shape = shape_of(config.model)
    mesh = resolve_mesh(config.parallelism, cluster.world_size)
    assert mesh is not None, "rules P102 and P103 let only degrees through whose product is the world size"
    stages_a_rank = stages_of_a_rank(config.parallelism, shape.n_layers, stack=stack)
    assert stages_a_rank is not None, "rule P111 lets only stages through that pipeline ranks share evenly"
    ranks = ranks_of(
        config, shape, mesh, stages_a_rank=stages_a_rank, capacity_bytes=cluster.gpu.memory_bytes, stack=stack
    )
    held = Held(config=config, shape=shape, mesh=mesh, ranks=ranks, gpu=cluster.gpu.name, stack=stack)
    stage_count = mesh.pp * stages_a_rank
    batch, recompute = resolve(
        config,
        data_ranks=mesh.data_ranks,
        stage_count=stage_count,
        suits=held.has_room,
        speed=lambda batch, recompute: speed_of(held, batch, time_of(held, cluster, batch, recompute)),
    )
    memories = held.memories(batch, recompute)
    time = time_of(held, cluster, batch, recompute)
    speed = speed_of(held, batch, time)
    global_batch = config.training.global_batch_size
    if global_batch == -1:
        global_batch = batch.local * mesh.data_ranks
    return Plan(
        gpu=cluster.gpu.name,
        stack=stack.name,
        world_size=cluster.world_size,
        mesh=mesh,
        model=shape,
        local_batch_size=batch.local,
        microbatch_size=batch.microbatch,
        microbatches=batch.microbatches,
        gradient_accumulation_steps=accumulation_steps(held, batch),
        global_batch_size=global_batch,
        tokens_per_step=global_batch * config.training.seq_len,
        parameters=parameter_count(shape),
        stage_count=stage_count,
        recompute=recompute,
        stages=tuple(_stage(config, *pair) for pair in zip(ranks, memories, strict=True)),
        memory=max(memories, key=lambda memory: (memory.fits is False, memory.needed_bytes)),
        time=time,
        tokens_per_s_per_gpu=speed,
        mfu_pct=None if speed is None else mfu_pct(shape, cluster.gpu, speed, seq_len=config.training.seq_len),
        calibration=cluster.calibration,
    )


def _stage(config: Config, rank: Rank, memory: Memory) -> Stage:
    return Stage(
        pp_rank=rank.pp_rank,
        layers=tuple(layer for _, layers in rank.parts for layer in layers),
        parts=rank.parts,
        parameters=rank.parameters,
        local_parameters=memory.masters_bytes // BYTES[config.training.dtype],
        memory=memory,
    )
