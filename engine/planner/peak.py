"""The fullest moment of a step on one rank, and what the allocator holds for it.

Knows what stands beside each other at each moment: activations, logits, gathered weights,
gradients that are not sharded yet. Does not know what a layer keeps (activations) or how many
microbatches are in flight (in_flight). The buffers are those of FSDP2 in torch 2.11 to 2.13.

Outside of the allocator a process holds more (the CUDA context, NCCL's and cuBLAS's buffers):
0.5 to 2 GiB, which the planner's margin leaves room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.planner.activations import (
    Logits,
    Work,
    backward_bytes,
    end_bytes,
    kept_bytes,
    logits,
    recomputed_bytes,
)
from engine.planner.memory import Memory, local_numel
from engine.planner.recompute import Recompute
from engine.shapes import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Weights of a rank by FSDP group, in elements before FSDP and after tensor parallel. 0: not on this rank."""

    block: int
    blocks: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All weights of the rank."""
        return self.block * self.blocks + self.embedding + self.head


def groups_of(parameters: Mapping[str, Parameter], *, layers: int, tp: int) -> Groups:
    """Sorts weights by name into the groups that parallel/shard makes; a tied weight is the head's too."""
    sizes = {"layers": 0, "tok_embeddings": 0, "head": 0}
    for name, parameter in parameters.items():
        start = name.partition(".")[0]
        sizes[start if start in sizes else "head"] += local_numel(parameter, tp=tp, fsdp=1)
    tied = "norm.weight" in parameters and "output.weight" not in parameters
    return Groups(
        block=sizes["layers"] // max(1, layers),
        blocks=layers,
        embedding=0 if tied else sizes["tok_embeddings"],
        head=sizes["head"] + (sizes["tok_embeddings"] if tied else 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How FSDP treats the weights of a rank.

    `gathered_width_bytes` is that of a gathered element, in a block 1 with float8 all-gather; 0 where nothing
    is gathered or cast. `keeps_gathered`: weights stay gathered from forward to backward. `sums_late`: gradients
    stay whole until the last microbatch of a pipeline. `accumulates`: those of an earlier accumulation step are there.
    """

    fsdp: int
    gathered_width_bytes: int
    gathered_block_width_bytes: int
    gradient_width_bytes: int
    reduce_width_bytes: int
    keeps_gathered: bool
    sums_late: bool
    accumulates: bool

    def gathered_bytes(self, groups: Groups) -> int:
        """Whole weights: all of them, or the head's (needed again at once) and a block's."""
        blocks = groups.blocks if self.keeps_gathered else min(1, groups.blocks)
        ends = groups.head + (groups.embedding if self.keeps_gathered else 0)
        return ends * self.gathered_width_bytes + blocks * groups.block * self.gathered_block_width_bytes

    def gathering_bytes(self, groups: Groups) -> int:
        """Buffers of the all-gathers, on a stream of their own: the largest group's, and the next block's beside it."""
        if self.fsdp == 1:
            return 0
        block = groups.block * self.gathered_block_width_bytes
        return block + max(block, max(groups.embedding, groups.head) * self.gathered_width_bytes)

    def gradient_bytes(self, size: int) -> int:
        """A group's whole gradient, and the copy of it that the reduce-scatter takes."""
        return size * (self.gradient_width_bytes + self._scattered_width_bytes)

    def scattering_bytes(self, size: int) -> int:
        """The input of a reduce-scatter, which stays until the next one begins."""
        return size * self._scattered_width_bytes

    @property
    def _scattered_width_bytes(self) -> int:
        # One rank scatters nothing: the copy is the gradient that stays, which is counted already.
        return self.reduce_width_bytes if self.fsdp > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What stands beside parameters and optimizer states at one point of a step."""

    name: str
    activations_bytes: int = 0
    logits_bytes: int = 0
    communication_bytes: int = 0
    update_bytes: int = 0
    grads_bytes: int = 0
    lost_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All that is used."""
        return self.laid_out_bytes - self.lost_bytes + self.grads_bytes

    @property
    def laid_out_bytes(self) -> int:
        """What the stream that computes needs for it, holes included; gradients come from another stream's pool."""
        used = self.activations_bytes + self.logits_bytes + self.communication_bytes + self.update_bytes
        return used + self.lost_bytes


def with_peak(
    static: Memory,
    *,
    work: Work,
    recompute: Recompute,
    groups: Groups,
    sharding: Sharding,
    parts: Sequence[tuple[tuple[int, ...], int]],
    has_loss: bool,
    pipelined: bool,
    update_bytes: int,
    has_streams: bool,
) -> Memory:
    """Completes what a rank holds all the time by its fullest moment.

    `parts` are the layers of each of its stages and the microbatches in flight there; `update_bytes` is
    what the optimizer takes for itself. Each field is the most that it comes to; `peak_bytes` is that
    of one moment, so no more than their sum. `has_streams`: the allocator keeps a pool for each stream of
    a GPU, and what is free in one is of no use to the others, so `reserved_bytes` sums the pools.
    """
    head = logits(work) if has_loss else None
    kept = sum(held * kept_bytes(work, recompute, layers) for layers, held in parts)
    if pipelined:
        # The output of each stage stays too, until its gradient comes back.
        kept += sum(held for _, held in parts) * work.stream_bytes
    if head is not None:
        kept += parts[-1][1] * end_bytes(work) + (parts[-1][1] - 1) * head.kept_bytes
    moments = _moments(
        static, kept, head, work=work, recompute=recompute, groups=groups, sharding=sharding, update_bytes=update_bytes
    )
    fullest = max(moments, key=lambda moment: moment.bytes)
    gathering = sharding.gathering_bytes(groups)
    peak = static.params_bytes + static.optimizer_bytes + gathering + fullest.bytes
    pools = max(moment.laid_out_bytes for moment in moments)
    return replace(
        static,
        activations_bytes=max(moment.activations_bytes for moment in moments),
        logits_bytes=max(moment.logits_bytes for moment in moments),
        communication_bytes=max(moment.communication_bytes for moment in moments) + gathering,
        peak_bytes=peak,
        reserved_bytes=static.static_bytes + pools + gathering if has_streams else None,
        moment=fullest.name,
        fits=peak <= static.capacity_bytes,
    )


def _moments(
    static: Memory,
    kept: int,
    head: Logits | None,
    *,
    work: Work,
    recompute: Recompute,
    groups: Groups,
    sharding: Sharding,
    update_bytes: int,
) -> list[_Moment]:
    """The points of a step at which a rank can be fullest; between them it only fills or only empties."""
    earlier = static.grads_bytes if sharding.accumulates else 0
    late = groups.total * sharding.reduce_width_bytes if sharding.sums_late else 0
    gathered = sharding.gathered_bytes(groups)
    before = sharding.scattering_bytes(groups.block if head is None else groups.head)
    moments = [
        _Moment(
            name="backward of a block",
            activations_bytes=kept + recomputed_bytes(work, recompute) + backward_bytes(work),
            communication_bytes=gathered + (late or before + sharding.gradient_bytes(groups.block)),
            grads_bytes=earlier,
        ),
        _Moment(
            name="gradient of the embedding",
            activations_bytes=work.whole_stream_bytes,
            communication_bytes=sharding.scattering_bytes(groups.block) + sharding.gradient_bytes(groups.embedding),
            grads_bytes=static.grads_bytes,
        ),
        _Moment(name="optimizer", update_bytes=update_bytes, grads_bytes=static.grads_bytes),
    ]
    if head is not None:
        moments += [
            _Moment(
                name="loss",
                activations_bytes=kept,
                logits_bytes=head.peak_bytes,
                lost_bytes=head.laid_out_bytes - head.peak_bytes,
                communication_bytes=gathered + late,
                grads_bytes=earlier,
            ),
            _Moment(
                name="gradient of the head",
                activations_bytes=kept,
                logits_bytes=head.gradient_bytes,
                communication_bytes=gathered + (late or sharding.gradient_bytes(groups.head)),
                grads_bytes=earlier,
            ),
        ]
    return moments
