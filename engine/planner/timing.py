"""Seconds of one optimizer step of a config, and where they go.

Puts together what a rank computes (compute), what it sends (messages), what of that is hidden (hiding) and how long
the pipeline waits (bubbles). Does not know rates, nor what no plan can: stragglers, a loader that is late, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from engine.hardware import Cluster, Gpu
from engine.planner.activations import Work
from engine.planner.batch import Batch
from engine.planner.bubbles import makespan_s
from engine.planner.comms import Group, group_of, links_of
from engine.planner.compute import gather_copies_s, optimizer_s, reduce_copies_s
from engine.planner.held import Held, Rank
from engine.planner.hiding import Exposed, over_a_step
from engine.planner.kernels import Kernels, kernels_of
from engine.planner.messages import weight_messages
from engine.planner.recompute import Recompute
from engine.planner.stage_seconds import Stages, StageSeconds
from engine.planner.update import adding_bytes, copy_bytes, making_bytes
from engine.shapes import ModelShape, flops_per_token

# GPUs of one kind differ: 8 % from the slow to the fast ones of a cluster in matrix products (arXiv 2208.11035, five
# clusters, power and temperature), which is this standard deviation and two to either side.
_SPREAD = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Seconds of one optimizer step, and where they go on the busiest rank; None is unknown.

    `step_s` = `compute_s` + `exposed_comm_s` + `bubble_s`, which is all that the rank waits for others. `compute_s`
    holds `recompute_s` and `optimizer_s`; `per_axis` shares `exposed_comm_s` out over the mesh axes,
    `communication_s` are the same axes with what compute hides. Sharding over context ranks counts as dp_shard.
    """

    step_s: float | None = None
    compute_s: float | None = None
    exposed_comm_s: float | None = None
    bubble_s: float | None = None
    per_axis: dict[str, float] | None = None
    recompute_s: float | None = None
    optimizer_s: float | None = None
    communication_s: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """The GPU's kernels and the group of each axis."""

    kernels: Kernels
    tp: Group
    cp: Group
    shards: Group
    replicas: Group
    pp: Group


def accumulation_steps(held: Held, batch: Batch) -> int:
    """Forward and backward passes of an optimizer step; at least one, where the global batch is not a multiple."""
    whole = held.config.training.global_batch_size
    return 1 if whole == -1 else max(1, whole // (batch.local * held.mesh.data_ranks))


def speed_of(held: Held, batch: Batch, time: Time) -> float | None:
    """Tokens a second of one GPU: those of a whole step, over all ranks of the world."""
    if time.step_s is None:
        return None
    tokens = accumulation_steps(held, batch) * batch.local * held.mesh.data_ranks * held.config.training.seq_len
    return tokens / time.step_s / held.mesh.world_size


def mfu_pct(shape: ModelShape, gpu: Gpu, tokens_per_s: float, *, seq_len: int) -> float | None:
    """Model FLOPs in percent of the GPU's dense bfloat16 peak, whatever precision it multiplies in.

    The convention of `flops_per_token`: attention as the full square, recomputation not counted.
    """
    peak = gpu.bf16_flops_per_s
    return None if peak is None else 100 * tokens_per_s * flops_per_token(shape, seq_len) / peak


@cache
def slowest_of(ranks: int) -> float:
    """How much longer than a usual GPU the slowest of so many takes; every collective waits for it.

    The expected largest of as many normal deviates (Blom's approximation).
    """
    return 1 + _SPREAD * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def time_of(held: Held, cluster: Cluster, batch: Batch, recompute: Recompute) -> Time:
    """Seconds of a step on the busiest pipeline rank; all None where a rate or a link is unknown."""
    kernels, links, mesh = kernels_of(cluster, held.stack), links_of(cluster), held.mesh
    tp, cp, pp = group_of(mesh, "tp", links), group_of(mesh, "cp", links), group_of(mesh, "pp", links)
    shards, replicas = group_of(mesh, "fsdp", links), group_of(mesh, "dp_replicate", links)
    if kernels is None or tp is None or cp is None or shards is None or replicas is None or pp is None:
        return Time()
    ways = _Ways(kernels=kernels, tp=tp, cp=cp, shards=shards, replicas=replicas, pp=pp)
    return _Step(held, ways, batch, recompute).time()


class _Step:
    """One step of one choice; what several ranks have alike is computed once."""

    def __init__(self, held: Held, ways: _Ways, batch: Batch, recompute: Recompute) -> None:
        self.held, self.ways, self.recompute = held, ways, recompute
        self.steps = accumulation_steps(held, batch)
        self.work: Work = held.work(batch)
        self.sharding = held.sharding(batch)
        self.gradient = held.gradient_dtype(batch)
        self.slower = slowest_of(held.mesh.world_size)
        self.microbatches = batch.microbatches if held.mesh.pp > 1 else 1
        self.stages = Stages(
            held.config,
            self.work,
            recompute,
            stage_count=sum(len(rank.parts) for rank in held.ranks),
            slower=self.slower,
            kernels=ways.kernels,
            tp=ways.tp,
            cp=ways.cp,
            stack=held.stack,
        )

    def time(self) -> Time:
        """The split of the busiest rank: of any other it would show how long that one waits for it."""
        pp, schedule = self.held.mesh.pp, self.held.config.parallelism.pipeline_parallel_schedule
        stages = {index: self.stages.of(index, layers) for rank in self.held.ranks for index, layers in rank.parts}
        times = tuple(stages[index].time for index in range(len(stages)))
        still = makespan_s(schedule, times, pp=pp, microbatches=self.microbatches)
        moving = still
        if pp > 1:
            hop = self.ways.pp.send_s(self.work.stream_bytes)
            moving = makespan_s(schedule, times, pp=pp, microbatches=self.microbatches, hop_s=hop)
        alike = {tuple(id(stages[index]) for index, _ in rank.parts): rank for rank in reversed(self.held.ranks)}
        found = [
            self._of_rank(rank, [stages[index] for index, _ in rank.parts], still, moving) for rank in alike.values()
        ]
        step_s = max(time.step_s or 0.0 for time in found)
        busiest = min(found, key=lambda time: time.bubble_s or 0.0)
        waits_s = step_s - (busiest.step_s or 0.0) + (busiest.bubble_s or 0.0)
        return replace(busiest, step_s=step_s, bubble_s=waits_s)

    def _of_rank(self, rank: Rank, stages: list[StageSeconds], still_s: float, moving_s: float) -> Time:
        """One rank: its kernels, what it sends, and what is left of the schedule."""
        steps, count = self.steps, self.steps * self.microbatches
        config, kernels = self.held.config, self.ways.kernels
        update_s = self.slower * optimizer_s(
            config,
            self.held.weights_of(rank),
            kernels,
            self.held.stack,
            gradient=self.gradient,
            copy_bytes=copy_bytes(config) if self.sharding.whole and not self.held.makes_copies else 0,
            on_gpu=self.held.on_gpu,
        )
        weights, contention = self._weights(rank), self._contention(rank)
        copies_s = self.slower * (self._whole_s(rank) if self.sharding.whole else steps * self._copies_s(rank))
        compute_s = count * sum(stage.compute.total_s for stage in stages) + copies_s + update_s
        tensor_open_s = count * sum(sum(stage.tensor_open) for stage in stages)
        context_s = count * sum(sum(stage.context) for stage in stages)
        waits_s = steps * (moving_s - still_s)
        per_axis = {
            "pp": waits_s,
            "dp_replicate": _costs_s(weights.replicas_s, weights.replicas_open_s, contention[1]),
            "dp_shard": _costs_s(weights.shards_s, weights.shards_open_s, contention[0]),
            "cp": context_s,
            "tp": tensor_open_s,
        }
        sent = {
            "pp": max(waits_s, count * 2 * len(stages) * self.ways.pp.send_s(self.work.stream_bytes)),
            "dp_replicate": weights.replicas_s,
            "dp_shard": weights.shards_s,
            "cp": context_s,
            "tp": count * sum(stage.tensor_s for stage in stages),
        }
        busy_s = count * sum(stage.time.total_s for stage in stages)
        open_s = sum(per_axis.values())
        bubble_s = max(0.0, steps * still_s - busy_s)
        return Time(
            step_s=compute_s + open_s + bubble_s,
            compute_s=compute_s,
            exposed_comm_s=open_s,
            bubble_s=bubble_s,
            per_axis={axis: seconds for axis, seconds in per_axis.items() if sent[axis]},
            recompute_s=count * sum(stage.compute.recompute_s for stage in stages),
            optimizer_s=update_s,
            communication_s={axis: seconds for axis, seconds in sent.items() if seconds},
        )

    def _weights(self, rank: Rank) -> Exposed:
        """Collectives on weights and gradients in a whole step."""
        found = weight_messages(rank.groups, self.sharding, self.ways.shards, self.ways.replicas)
        return over_a_step(
            found,
            self.stages.block,
            blocks=rank.groups.blocks,
            sharding=self.sharding,
            stack=self.held.stack,
            steps=self.steps,
            microbatches=self.microbatches,
        )

    def _contention(self, rank: Rank) -> tuple[float, float]:
        """What hidden collectives over shards and over replicas cost the kernels beside them, as a share of each."""
        groups, sharding, ways = rank.groups, self.sharding, self.ways
        found = weight_messages(groups, sharding, ways.shards, ways.replicas)

        def once_s(messages: tuple[float, float, float]) -> float:
            return groups.blocks * messages[0] + messages[1] + messages[2]

        gathered_bytes = sharding.whole_bytes(groups, blocks=groups.blocks, ends=groups.embedding + groups.head)
        summed_bytes = groups.total * sharding.reduce_width_bytes
        shards_s = once_s(found.gather) + once_s(found.scatter)
        return (
            ways.shards.contention(gathered_bytes + summed_bytes, shards_s),
            ways.replicas.contention(2 * summed_bytes / ways.shards.size, once_s(found.copies)),
        )

    def _whole_s(self, rank: Rank) -> float:
        """Where there is no FSDP: adding up gradients of several backwards, and making copies, in a whole step."""
        config, groups, backwards = self.held.config, rank.groups, self.steps * self.microbatches
        moved = groups.total * adding_bytes(config, backwards=backwards)
        if self.held.makes_copies:
            blocks = groups.blocks * groups.block
            moved += making_bytes(config, blocks=blocks, table=groups.embedding, backwards=backwards)
        return self.ways.kernels.elementwise_s(moved)

    def _copies_s(self, rank: Rank) -> float:
        """FSDP's own copies in one accumulation step: around each gathering, and around the sum."""
        sharding, groups, mesh, stack = self.sharding, rank.groups, self.held.mesh, self.held.stack
        training = self.held.config.training
        casts = training.dtype != training.mixed_precision_param and stack.one_rank == "fsdp"
        if stack.shards_only_optimizer or (mesh.fsdp * mesh.dp_replicate == 1 and not casts):
            return 0.0
        often = 1 if sharding.keeps_gathered else 2
        if mesh.pp > 1 and not sharding.keeps_gathered:
            often *= self.microbatches
        gathered = often * groups.blocks * groups.block + groups.embedding + groups.head
        config, kernels = self.held.config, self.ways.kernels
        return gather_copies_s(config, gathered, fsdp=mesh.fsdp, kernels=kernels) + reduce_copies_s(
            config, groups.total, fsdp=mesh.fsdp, kernels=kernels
        )


def _costs_s(all_s: float, open_s: float, contention: float) -> float:
    """What is in the open, and what the rest slows the kernels beside it."""
    return open_s + contention * (all_s - open_s)
