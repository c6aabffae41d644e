"""FSDP's groups of a rank's weights, and the bytes of their buffers.

Knows what parallel/shard groups, gathers, casts and sums, and in which precision; and that there are no buffers where
no other rank shares the weights (parallel/whole). Does not know when which of it is there (peak) or how long it takes
(messages). The buffers are those of FSDP2 in torch 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.planner.memory import local_numel
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

    `gathered_width_bytes` is that of a gathered element, in a block 1 with float8 all-gather; one rank has such
    copies too, cast or not. Sums are made at `reduce_width_bytes`, and kept at that of the weights:
    `summed_width_bytes`. `keeps_gathered`: weights stay gathered from forward to backward. `sums_late`: gradients
    stay whole until the last microbatch of a pipeline. `accumulates`: those of an earlier accumulation step are
    there. `replicates`: copies of the model sum their gradients too.

    `whole`: there is no FSDP, because no other rank shares a weight. Nothing is sent; `gathered_block_width_bytes` are
    those of a block's copies, where they are made for each of its uses, else 0. Gradients stand
    at `summed_width_bytes` from the backward that makes them; `adds_up`: they are added to those of earlier ones.
    """

    fsdp: int
    gathered_width_bytes: int
    gathered_block_width_bytes: int
    gradient_width_bytes: int
    reduce_width_bytes: int
    summed_width_bytes: int
    keeps_gathered: bool
    sums_late: bool
    accumulates: bool
    replicates: bool = False
    whole: bool = False
    adds_up: bool = False

    def whole_bytes(self, groups: Groups, *, blocks: int, ends: int) -> int:
        """Gathered weights: so many blocks, and so many elements of embedding and head."""
        if self.keeps_gathered:
            blocks, ends = groups.blocks, groups.embedding + groups.head
        return ends * self.gathered_width_bytes + blocks * groups.block * self.gathered_block_width_bytes

    def width_bytes(self, *, block: bool) -> int:
        """Of a gathered element, of a block or of the ends."""
        return self.gathered_block_width_bytes if block else self.gathered_width_bytes

    def buffer_bytes(self, size: int, *, block: bool = False) -> int:
        """The result of an all-gather, on a stream of its own, from which weights are copied out."""
        return size * self.width_bytes(block=block) if self.fsdp > 1 else 0

    def gathering_bytes(self, groups: Groups) -> int:
        """What the stream of all-gathers needs for its pool: the largest group's result, and the next block's."""
        block = self.buffer_bytes(groups.block, block=True)
        return block + max(block, self.buffer_bytes(max(groups.embedding, groups.head)))

    def scattering_bytes(self, size: int) -> int:
        """The input of a reduce-scatter, which stays until the next one begins; one rank has it too."""
        return size * self.reduce_width_bytes

    def summed_bytes(self, size: int) -> int:
        """A rank's share of summed gradients, in the precision of the weights they belong to."""
        return -(-size // self.fsdp) * self.summed_width_bytes

    @property
    def casts_sums(self) -> bool:
        """Whether sums are kept in another precision than they are made in."""
        return not self.whole and self.reduce_width_bytes != self.summed_width_bytes

    def uncast_bytes(self, size: int) -> int:
        """The share as it was summed, beside its cast to the precision of the weights."""
        return self.received_bytes(size) if self.casts_sums else 0

    def received_bytes(self, size: int) -> int:
        """The result of a reduce-scatter, in the precision of the sums."""
        return -(-size // self.fsdp) * self.reduce_width_bytes

    def copied_bytes(self, size: int) -> int:
        """What a sum over copies that are not sharded takes for a moment: torch divides by 1 into a new tensor."""
        return size * self.reduce_width_bytes if self.fsdp == 1 and self.replicates else 0

    @property
    def lingers(self) -> bool:
        """Whether the gradient that was copied to be summed is there until it is summed."""
        return self.fsdp > 1

    def gradient_bytes(self, size: int) -> int:
        """Gradients before they are summed, in the precision of the products."""
        return size * self.gradient_width_bytes

    def settled_bytes(self, size: int) -> int:
        """Gradients beside the sums that they go into; those of one backward without FSDP go into none."""
        return 0 if self.whole and not self.adds_up else self.gradient_bytes(size)

    def scattered_bytes(self, size: int) -> int:
        """The input of a reduce-scatter beside backward; a pipeline sums behind it."""
        return 0 if self.sums_late else self.scattering_bytes(size)

    def divided_bytes(self, size: int) -> int:
        """A sum divided into a new tensor, as far as that is more than its cast, which comes behind it."""
        cast = self.summed_bytes(size) if self.casts_sums else 0
        return max(0, self.copied_bytes(size) - cast)

    def again_bytes(self, size: int) -> int:
        """What passes of a sum: as it is before its cast, and that of another accumulation step before it is added."""
        if self.sums_late or self.whole:
            return 0
        if self.replicates and self.casts_sums:
            return self.uncast_bytes(size) if self.accumulates else 0
        return self.uncast_bytes(size) + (self.summed_bytes(size) if self.accumulates else 0)

    def staying(self, count: int) -> int:
        """What of so much that went back stays gathered: all of it under a pipeline, until its next forward.

        There torch frees after forward only. A table is not gathered in backward.
        """
        return count if self.sums_late and not self.keeps_gathered else 0
