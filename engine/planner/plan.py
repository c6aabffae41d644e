"""The Plan: every number of a run that the config leaves open, resolved once.

Knows mesh, accumulation, microbatches, layers and parameters of each pipeline rank, and the
exact memory terms. Assumes a config that the rules let through; does not check it again. Does
not know time yet: those fields are None.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any, TypeAlias

from engine.config import Config, Parallelism
from engine.hardware import Cluster, resolve_cluster
from engine.planner.memory import BYTES, Memory, static_memory
from engine.planner.recompute import Recompute, recompute_choices
from engine.planner.schedule import split_layers, stage_indices, stages_of_a_rank, takes_microbatches
from engine.shapes import ModelShape, Parameter, parameter_count, part_parameters, shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the five axes, outermost first: ranks of `tp` are neighbours."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int

    @property
    def world_size(self) -> int:
        """Product of all axes."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def fsdp(self) -> int:
        """Ranks over which weights, gradients and optimizer states are sharded."""
        return self.dp_shard * self.cp


Parts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages of a pipeline rank: the index of each, and its layers."""


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
class Time:
    """Seconds of one optimizer step, and where they go; None is unknown. `per_axis` is communication by mesh axis."""

    step_s: float | None = None
    compute_s: float | None = None
    exposed_comm_s: float | None = None
    bubble_s: float | None = None
    per_axis: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run. `memory` is that of the rank that holds most."""

    gpu: str
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
    time: Time = Time()
    tokens_per_s_per_gpu: float | None = None
    mfu_pct: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as the plain object of `titan validate --json`."""
        return asdict(self)


def resolve_mesh(parallelism: Parallelism, world_size: int) -> Mesh | None:
    """The degrees with -1 filled in; None where their product cannot be the world size."""
    p = parallelism
    others = (
        p.data_parallel_replicate_degree,
        p.context_parallel_degree,
        p.tensor_parallel_degree,
        p.pipeline_parallel_degree,
    )
    if min(others) < 1:
        return None
    fixed = prod(others)
    shard = world_size // fixed if p.data_parallel_shard_degree == -1 else p.data_parallel_shard_degree
    if shard < 1 or fixed * shard != world_size:
        return None
    return Mesh(
        pp=p.pipeline_parallel_degree,
        dp_replicate=p.data_parallel_replicate_degree,
        dp_shard=shard,
        cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree,
    )


def resolve_local_batch(config: Config, stage_count: int) -> int:
    """`training.local_batch_size` as a number.

    `auto` becomes the smallest batch the pipeline schedule takes; choosing the largest that
    fits needs the memory of activations, which is not known yet (the setting is reported
    inactive, and launch refuses it).
    """
    size = config.training.local_batch_size
    if size != "auto":
        return size
    p = config.parallelism
    microbatches = 1
    while not takes_microbatches(
        p.pipeline_parallel_schedule, microbatches=microbatches, pp=p.pipeline_parallel_degree, stages=stage_count
    ):
        microbatches += 1
    return microbatches * (p.pipeline_parallel_microbatch_size if p.pipeline_parallel_degree > 1 else 1)


def held_parameters(shape: ModelShape, parts: Parts, *, stage_count: int) -> dict[str, Parameter]:
    """The weights of one pipeline rank, by name: stage 0 has the embedding, the last one norm and head.

    A V-shaped schedule puts both on rank 0; tied weights with PP are refused.
    """
    indices = {index for index, _ in parts}
    layers = tuple(layer for _, piece in parts for layer in piece)
    return part_parameters(shape, layers, first=0 in indices, last=stage_count - 1 in indices)


def _stages(
    config: Config, shape: ModelShape, mesh: Mesh, *, stages_a_rank: int, capacity_bytes: int
) -> tuple[Stage, ...]:
    count = mesh.pp * stages_a_rank
    pieces = split_layers(shape.n_layers, count)
    ranks: list[Stage] = []
    for pp_rank in range(mesh.pp):
        indices = stage_indices(
            config.parallelism.pipeline_parallel_schedule, pp_rank=pp_rank, pp=mesh.pp, stages_a_rank=stages_a_rank
        )
        parts = tuple((index, pieces[index]) for index in indices)
        weights = held_parameters(shape, parts, stage_count=count).values()
        memory = static_memory(
            weights,
            tp=mesh.tp,
            fsdp=mesh.fsdp,
            dtype=config.training.dtype,
            optimizer=config.optimizer.name,
            capacity_bytes=capacity_bytes,
        )
        ranks.append(
            Stage(
                pp_rank=pp_rank,
                layers=tuple(layer for _, layers in parts for layer in layers),
                parts=parts,
                parameters=sum(weight.numel for weight in weights),
                local_parameters=memory.params_bytes // BYTES[config.training.dtype],
                memory=memory,
            )
        )
    return tuple(ranks)


def plan(config: Config, cluster: Cluster | None = None) -> Plan:
    """Resolves a config that the rules let through; `cluster` replaces the config's own (another GPU, same count)."""
    cluster = cluster or resolve_cluster(config.cluster)
    shape = shape_of(config.model)
    mesh = resolve_mesh(config.parallelism, cluster.world_size)
    assert mesh is not None, "rules P102 and P103 let only degrees through whose product is the world size"
    stages_a_rank = stages_of_a_rank(config.parallelism, shape.n_layers)
    assert stages_a_rank is not None, "rule P111 lets only stages through that pipeline ranks share evenly"
    stages = _stages(config, shape, mesh, stages_a_rank=stages_a_rank, capacity_bytes=cluster.gpu.memory_bytes)

    local_batch = resolve_local_batch(config, mesh.pp * stages_a_rank)
    microbatch = config.parallelism.pipeline_parallel_microbatch_size if mesh.pp > 1 else local_batch
    global_batch = config.training.global_batch_size
    if global_batch == -1:
        global_batch = local_batch * mesh.data_ranks
    return Plan(
        gpu=cluster.gpu.name,
        world_size=cluster.world_size,
        mesh=mesh,
        model=shape,
        local_batch_size=local_batch,
        microbatch_size=microbatch,
        microbatches=local_batch // microbatch,
        gradient_accumulation_steps=global_batch // (local_batch * mesh.data_ranks),
        global_batch_size=global_batch,
        tokens_per_step=global_batch * config.training.seq_len,
        parameters=parameter_count(shape),
        stage_count=mesh.pp * stages_a_rank,
        recompute=recompute_choices(config.activation_checkpoint)[0],
        stages=stages,
        memory=max((stage.memory for stage in stages), key=lambda memory: memory.static_bytes),
    )
