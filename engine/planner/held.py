"""What each pipeline rank of a config holds, for any batch and recomputation.

Knows how a config's keys become the numbers that activations and peak count with, and which
weights a pipeline rank has. Does not choose batch or recomputation (batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

from engine.config import Config, Dtype
from engine.planner.activations import FLOAT32, Work
from engine.planner.batch import Batch
from engine.planner.block import largest_weight
from engine.planner.in_flight import ALONE, fullest, in_flight
from engine.planner.load import Load
from engine.planner.memory import BYTES, Memory, static_memory
from engine.planner.mesh import Mesh
from engine.planner.overlap import has_async_tp
from engine.planner.peak import needed_bytes, with_peak
from engine.planner.peers.megatron import megatron_memory
from engine.planner.peers.torchtitan import torchtitan_memory
from engine.planner.recompute import Recompute
from engine.planner.schedule import layers_of_stages, stage_indices
from engine.planner.sharding import Groups, Sharding, groups_of
from engine.planner.stack import TITAN, Stack
from engine.planner.update import copy_bytes, gradient_dtype, holds_whole, makes_copies, taken_bytes
from engine.shapes import ModelShape, Parameter, block_parameters, part_parameters

Parts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages of a pipeline rank: the index of each, and its layers."""

# What `auto` may fill. On a GPU the rest holds the CUDA context, NCCL's and cuBLAS's buffers, and the few percent by
# which the plan may err; a machine's memory is shared with the system and all else that runs on it.
GPU_ROOM, _CPU_ROOM = 0.92, 0.5


def room_of(gpu: str) -> float:
    """The share of its memory that a plan of `auto` fills at most."""
    return _CPU_ROOM if gpu == "cpu" else GPU_ROOM


def held_parameters(shape: ModelShape, parts: Parts, *, stage_count: int) -> dict[str, Parameter]:
    """The weights of one pipeline rank, by name: stage 0 has the embedding, the last one norm and head.

    A V-shaped schedule puts both on rank 0; tied weights with PP are refused.
    """
    indices = {index for index, _ in parts}
    layers = tuple(layer for _, piece in parts for layer in piece)
    return part_parameters(shape, layers, first=0 in indices, last=stage_count - 1 in indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One pipeline rank before anything runs: its stages, its weights, and what it holds all the time."""

    pp_rank: int
    parts: Parts
    parameters: int
    groups: Groups
    has_loss: bool
    static: Memory


def ranks_of(
    config: Config, shape: ModelShape, mesh: Mesh, *, stages_a_rank: int, capacity_bytes: int, stack: Stack = TITAN
) -> tuple[Rank, ...]:
    """All pipeline ranks of a layout."""
    count = mesh.pp * stages_a_rank
    pieces = layers_of_stages(shape, config.parallelism, count, stack=stack)
    block = block_parameters(shape)
    block_numel = sum(weight.numel for weight in block.values())
    ranks: list[Rank] = []
    # Ranks with as many layers and the same ends have the same weights under other names.
    alike: dict[tuple[int, bool, bool], Rank] = {}
    whole = holds_whole(mesh, stack)
    # The narrower of what gradients can stand in: which it is depends on the batch.
    least = min(BYTES[gradient_dtype(config, adds_up=adds_up)] for adds_up in (False, True))
    for pp_rank in range(mesh.pp):
        indices = stage_indices(
            config.parallelism.pipeline_parallel_schedule, pp_rank=pp_rank, pp=mesh.pp, stages_a_rank=stages_a_rank
        )
        parts = tuple((index, pieces[index]) for index in indices)
        blocks = sum(len(layers) for _, layers in parts)
        key = blocks, 0 in indices, count - 1 in indices
        if key in alike:
            ranks.append(replace(alike[key], pp_rank=pp_rank, parts=parts))
            continue
        first, last = 0 in indices, count - 1 in indices
        ends = part_parameters(shape, (), first=first, last=last)
        # Blocks are alike: one stands for all of them.
        one = part_parameters(shape, (0,) if blocks else (), first=first, last=last)
        alike[key] = Rank(
            pp_rank=pp_rank,
            parts=parts,
            parameters=sum(weight.numel for weight in ends.values()) + blocks * block_numel,
            groups=replace(groups_of(one, layers=1, tp=mesh.tp), blocks=blocks),
            has_loss=last,
            static=static_memory(
                ends.values(),
                block=block.values(),
                blocks=blocks,
                tp=mesh.tp,
                fsdp=mesh.fsdp,
                dtype=config.training.dtype,
                optimizer=config.optimizer.name,
                capacity_bytes=capacity_bytes,
                copy_bytes=copy_bytes(config) if whole else 0,
                copied=_kept(ends) if makes_copies(config, mesh, stack) else None,
                gradient_bytes=least if whole else None,
            ),
        )
        ranks.append(alike[key])
    return tuple(ranks)


def _kept(ends: dict[str, Parameter]) -> list[Parameter]:
    """Of embedding, norm and head the weights whose copies stay where others are made for each use."""
    tied = "norm.weight" in ends and "output.weight" not in ends
    return [weight for name, weight in ends.items() if tied or not name.startswith("tok_embeddings")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The memory of every pipeline rank as a function of batch and recomputation."""

    config: Config
    shape: ModelShape
    mesh: Mesh
    ranks: tuple[Rank, ...]
    gpu: str
    stack: Stack = TITAN

    @property
    def on_gpu(self) -> bool:
        """Whether ranks are GPUs, with streams and fused norms, or processes on CPUs."""
        return self.gpu != "cpu"

    def memories(self, batch: Batch, recompute: Recompute) -> tuple[Memory, ...]:
        """Bytes of each pipeline rank."""
        work = self.work(batch)
        return tuple(self._memory(rank, work, batch, recompute) for rank in self.ranks)

    def needed_bytes(
        self, batch: Batch, recompute: Recompute, *, ranks: Sequence[Rank] = (), enough: float = inf
    ) -> int:
        """What the fullest rank takes; of the first moment of one that takes more than `enough`, where one does.

        `ranks` are those that can be fullest, where that is known.
        """
        ranks = ranks or self.ranks
        most = max(rank.static.static_bytes for rank in ranks)
        if most > enough:
            return most
        work, sharding = self.work(batch), self.sharding(batch)
        for rank in ranks:
            most = max(most, needed_bytes(self._load(rank, work, sharding, batch, recompute), enough=enough))
            if most > enough:
                break
        return most

    def has_room(self, batch: Batch, recompute: Recompute) -> bool:
        """Whether every rank keeps the planner's margin free."""
        room = room_of(self.gpu)
        return all(memory.needed_bytes <= room * memory.capacity_bytes for memory in self.memories(batch, recompute))

    def work(self, batch: Batch) -> Work:
        """What a rank computes at once."""
        training, parallelism, compiles = self.config.training, self.config.parallelism, self.config.compile
        float8 = self.config.quantize.dense.float8
        low = float8.enable or self.config.quantize.dense.mx.enable
        high = float8.enable and float8.recipe_name == "rowwise_with_gw_hp"
        return Work(
            shape=self.shape,
            tokens=batch.microbatch * -(-training.seq_len // self.mesh.cp),
            tp=self.mesh.tp,
            cp=self.mesh.cp,
            cp_method=parallelism.context_parallel_method,
            width_bytes=BYTES[training.mixed_precision_param],
            compiled=compiles.enable and "model" in compiles.components,
            compiled_loss=compiles.enable and "loss" in compiles.components,
            loss_parallel=not parallelism.disable_loss_parallel,
            loss_chunks=training.loss_chunks,
            fused_norm=self.on_gpu,
            sequences=batch.microbatch,
            async_tp=self.stack.memory == "titan" and has_async_tp(self.config),
            float8=("weight_gradients_high" if high else "weight_gradients_low") if low else None,
            gathers_float8=self._gathers_float8,
            drops_gradients=self.adds_up(batch),
        )

    @property
    def _gathers_float8(self) -> bool:
        float8 = self.config.quantize.dense.float8
        return float8.enable and float8.enable_fsdp_float8_all_gather and self.mesh.fsdp > 1

    def _memory(self, rank: Rank, work: Work, batch: Batch, recompute: Recompute) -> Memory:
        if self.stack.memory != "titan":
            return self._peer_memory(rank, work, batch, recompute)
        return with_peak(self._load(rank, work, self.sharding(batch), batch, recompute))

    def _load(self, rank: Rank, work: Work, sharding: Sharding, batch: Batch, recompute: Recompute) -> Load:
        """What the memory of a rank depends on, in titan."""
        cos_and_sin = FLOAT32 * self.shape.head_dim
        weights = self.weights_of(rank)
        return Load(
            static=replace(rank.static, grads_bytes=weights * sharding.summed_width_bytes),
            work=work,
            recompute=recompute,
            groups=rank.groups,
            sharding=sharding,
            stages=tuple(layers for _, layers in rank.parts),
            states=fullest(**self._order(rank, batch)) if self.mesh.pp > 1 else ALONE,
            has_loss=rank.has_loss,
            pipelined=self.mesh.pp > 1,
            update_bytes=taken_bytes(
                self.config,
                weights,
                largest=-(-max(rank.groups.embedding, rank.groups.head, largest_weight(work)) // self.mesh.fsdp),
                gradient=self.gradient_dtype(batch),
                on_gpu=self.on_gpu,
            ),
            tables_bytes=self.config.training.seq_len * cos_and_sin,
            # Context ranks take the rows of their tokens.
            places_bytes=work.tokens // batch.microbatch * cos_and_sin if self.mesh.cp > 1 else 0,
            has_streams=self.on_gpu,
        )

    def _order(self, rank: Rank, batch: Batch) -> dict[str, Any]:
        """What a rank's order of work depends on."""
        return {
            "schedule": self.config.parallelism.pipeline_parallel_schedule,
            "pp_rank": rank.pp_rank,
            "pp": self.mesh.pp,
            "stages_a_rank": len(rank.parts),
            "microbatches": batch.microbatches,
        }

    def _peer_memory(self, rank: Rank, work: Work, batch: Batch, recompute: Recompute) -> Memory:
        """A rank of another implementation."""
        held = in_flight(**self._order(rank, batch)) if self.mesh.pp > 1 else [1]
        parts = [(layers, count) for (_, layers), count in zip(rank.parts, held, strict=True)]
        common: dict[str, Any] = {
            "config": self.config,
            "mesh": self.mesh,
            "work": work,
            "recompute": recompute,
            "groups": rank.groups,
            "parts": parts,
            "has_loss": rank.has_loss,
        }
        if self.stack.memory == "megatron":
            return megatron_memory(rank.static, **common)
        return torchtitan_memory(rank.static, gpu=self.gpu, microbatches=batch.microbatches, **common)

    def accumulates(self, batch: Batch) -> bool:
        """Whether an optimizer step has more than one accumulation step."""
        return self.config.training.global_batch_size > batch.local * self.mesh.data_ranks

    def adds_up(self, batch: Batch) -> bool:
        """Whether a step has several backwards, after each of which gradients are added up at once, without FSDP."""
        return holds_whole(self.mesh, self.stack) and (batch.microbatches > 1 or self.accumulates(batch))

    def gradient_dtype(self, batch: Batch) -> Dtype:
        """The precision in which gradients come to the update."""
        if not holds_whole(self.mesh, self.stack):
            return self.config.training.dtype
        return gradient_dtype(self.config, adds_up=self.adds_up(batch))

    def weights_of(self, rank: Rank) -> int:
        """Elements of weights that a rank keeps."""
        return rank.static.masters_bytes // BYTES[self.config.training.dtype]

    @property
    def makes_copies(self) -> bool:
        """Whether a block's copies are there while it computes, and no longer."""
        return makes_copies(self.config, self.mesh, self.stack)

    def sharding(self, batch: Batch) -> Sharding:
        """How FSDP treats the weights of a rank, or what stands for it where there is none."""
        training, reshard = self.config.training, self.config.parallelism.fsdp_reshard_after_forward
        width = BYTES[training.mixed_precision_param]
        if holds_whole(self.mesh, self.stack):
            return Sharding(
                fsdp=1,
                gathered_width_bytes=0,
                gathered_block_width_bytes=copy_bytes(self.config) if self.makes_copies else 0,
                gradient_width_bytes=width,
                reduce_width_bytes=0,
                summed_width_bytes=BYTES[self.gradient_dtype(batch)],
                keeps_gathered=False,
                sums_late=False,
                accumulates=self.accumulates(batch),
                whole=True,
                adds_up=self.adds_up(batch),
            )
        return Sharding(
            fsdp=self.mesh.fsdp,
            gathered_width_bytes=width,
            gathered_block_width_bytes=1 if self._gathers_float8 else width,
            gradient_width_bytes=width,
            reduce_width_bytes=BYTES[training.mixed_precision_reduce],
            summed_width_bytes=BYTES[training.dtype],
            keeps_gathered=reshard == "never" or (reshard == "default" and self.mesh.pp > 1),
            sums_late=self.mesh.pp > 1,
            accumulates=self.accumulates(batch),
            replicates=self.mesh.dp_replicate > 1,
        )
