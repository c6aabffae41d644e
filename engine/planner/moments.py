"""The points of a step at which a rank can be fullest, and what stands beside each other at each.

Knows activations of all microbatches in flight, logits, gathered weights and gradients that are not sharded
yet. Does not know what a layer keeps (activations), what passes inside of it (block), which microbatches are in
flight when (in_flight) or what the allocator makes of it (peak).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from operator import mul
from typing import NamedTuple

from engine.planner.activations import Logits, Work, end_bytes, kept_bytes, logits
from engine.planner.block import BlockPeaks, LayerMode, block_peaks, largest_weight
from engine.planner.in_flight import Fullness
from engine.planner.load import Load, Moment
from engine.planner.recompute import Recompute


@cache
def _head_of(work: Work) -> tuple[Logits, int]:
    """The logits, and what the last part keeps of a microbatch, these included."""
    head = logits(work)
    return head, end_bytes(work) + head.kept_bytes


@cache
def _layers_of(work: Work, recompute: Recompute) -> tuple[tuple[int, BlockPeaks], tuple[int, BlockPeaks]]:
    """What a layer keeps of a microbatch and what passes: of a usual one, and of one computed again in full."""
    mode: LayerMode = "selective" if recompute.mode == "selective" and recompute.every is None else "none"
    usual = recompute if recompute.every is None else Recompute()
    repeated = Recompute(mode="full")
    return (
        (kept_bytes(work, usual, (0,)), block_peaks(work, mode)),
        (kept_bytes(work, repeated, (0,)), block_peaks(work, "full")),
    )


class _At(NamedTuple):
    """Where a rank is: the stage it is at, what microbatches in flight keep, and gradients of earlier ones.

    `late` are elements of other stages whose gradients are whole, `graded` whether this stage's are; `summed_bytes` is
    what is summed by then where a pipeline sums at its end. Without FSDP gradients of stages that are through are
    `late` too.
    """

    stage: int
    base: int
    late: int
    graded: bool
    summed_bytes: int


class Moments:
    """The points of a step at which a rank can be fullest; between them it only fills or only empties."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.work, self.groups, self.sharding = load.work, load.groups, load.sharding
        self.head: Logits | None
        self.head, end_kept_bytes = _head_of(load.work) if load.has_loss else (None, 0)
        self.last = len(load.stages) - 1
        # A tied weight is in the root's group, which is gathered from the first block's forward to its backward.
        self.root = self.groups.head if load.has_loss and 0 in load.stages[0] and not self.groups.embedding else 0
        self._layers = _layers_of(load.work, load.recompute)
        self._all_gathered = (
            self.sharding.whole_bytes(self.groups, blocks=0, ends=0) if self.sharding.keeps_gathered else None
        )
        self.sizes = [self._size(stage) for stage in range(len(load.stages))]
        # A pipeline keeps the output of a stage until its gradient is back.
        self._stream_bytes = self.work.stream_bytes
        beside = load.places_bytes + (self._stream_bytes if load.pipelined else 0)
        self.kept = [beside + self._kept(layers) for layers in load.stages]
        self.whole = list(self.kept)
        self.whole[-1] += end_kept_bytes
        self.put_off = [
            len(layers) * self._block(layers[0])[1].put_off_bytes if layers else 0 for layers in load.stages
        ]
        self.tables = load.tables_bytes * len(load.stages)
        # Eager backward adds each gradient up as soon as it is there, a compiled block gives all of its own at once.
        adds_each = load.sharding.adds_up and not load.work.compiled
        self._block_gradients = largest_weight(load.work) if adds_each else load.groups.block

    def __iter__(self) -> Iterator[Moment]:
        for state, held in self._states():
            at = self._at(state, self.tables + held)
            base = at.base
            match state.kind:
                case "F":
                    yield from self._forward(at)
                case "B":
                    yield from self._after_loss(at, base)
                    yield from self._blocks(at)
                    yield from self._embedding(at)
                case "I":
                    yield from self._after_loss(at, base - self.put_off[at.stage])
                    yield self._moment("backward of a block", at, activations=base + 2 * self.work.hidden_bytes)
                case "W":
                    yield self._weights(at)
                case "sum" if not self.sharding.whole:
                    yield self._sum(at)
        yield Moment(
            name="optimizer",
            activations_bytes=self.tables,
            update_bytes=self.load.update_bytes,
            grads_bytes=self.load.static.grads_bytes,
        )

    def _states(self) -> Iterable[tuple[Fullness, int]]:
        """Of moments that differ in their microbatches only, the one whose microbatches take most; with these bytes."""
        fullest: dict[tuple[object, ...], tuple[Fullness, int]] = {}
        whole, put_off = self.whole, self.put_off
        for state in self.load.states:
            kind, stage, held, later, graded, summed = state
            base = sum(map(mul, held, whole)) + sum(map(mul, later, put_off))
            key = kind, stage, graded, summed
            if key not in fullest or base > fullest[key][1]:
                fullest[key] = state, base
        return fullest.values()

    def _at(self, state: Fullness, base: int) -> _At:
        late = summed = 0
        if self.sharding.whole:
            others = [(size, *flags) for size, *flags in zip(self.sizes, state.graded, state.summed, strict=True)]
            del others[state.stage]
            late = sum(size for size, graded, through in others if graded or through)
        elif self.last and self.sharding.sums_late:
            others = [(size, *flags) for size, *flags in zip(self.sizes, state.graded, state.summed, strict=True)]
            del others[state.stage]
            late = sum(size for size, graded, _ in others if graded)
            summed = self._summed(sum(size for size, _, through in others if through))
        elif self.sharding.sums_late:
            summed = self._summed(0)
        return _At(state.stage, base, late, state.graded[state.stage], summed)

    def _block(self, layer: int) -> tuple[int, BlockPeaks]:
        """What a layer keeps of a microbatch, and what passes."""
        return self._layers[self.load.recompute.repeats(layer)]

    def _kept(self, layers: tuple[int, ...]) -> int:
        """What layers keep of a microbatch together."""
        recompute, (usual, repeated) = self.load.recompute, self._layers
        if recompute.every is None:
            return len(layers) * (repeated if recompute.mode == "full" else usual)[0]
        again = sum(map(recompute.repeats, layers))
        return again * repeated[0] + (len(layers) - again) * usual[0]

    # ---- the moments -------------------------------------------------------------------------

    def _forward(self, at: _At) -> Iterator[Moment]:
        sharding = self.sharding
        layers, block = self.load.stages[at.stage], self.groups.block
        rest = at.base - self.whole[at.stage] + self.kept[at.stage]
        kept, peaks = self._block(layers[-1])
        yield self._moment(
            "forward",
            at,
            activations=rest - kept + peaks.forward_bytes,
            blocks=1,
            gathering=sharding.buffer_bytes(block, block=True),
        )
        if self.head is not None and at.stage == self.last:
            ahead = sharding.buffer_bytes(block, block=True) if self.root else sharding.buffer_bytes(self.groups.head)
            if self.load.pipelined and sharding.keeps_gathered:
                # The loss comes after the stage, whose last gathering is over by then.
                ahead = 0
            yield self._loss(at, at.base, self.head.forward_bytes, gathering=ahead)

    def _after_loss(self, at: _At, base: int) -> Iterator[Moment]:
        sharding = self.sharding
        if self.head is None or at.stage != self.last:
            return
        ahead = self._ahead()
        yield self._loss(at, base, self.head.backward_bytes, gathering=ahead)
        size = self.groups.head
        yield self._moment(
            "gradient of the head",
            at,
            activations=base - self.head.kept_bytes,
            logits=self.head.gradient_bytes,
            ends=size,
            whole=sharding.gradient_bytes(size),
            gathering=ahead,
        )
        if self.root:
            return
        yield self._moment(
            "gradient of the head",
            at,
            activations=base - self.head.kept_bytes,
            ends=sharding.staying(size),
            whole=sharding.settled_bytes(size) + sharding.scattered_bytes(size) + sharding.again_bytes(size),
            progress=size if sharding.sums_late or sharding.lingers or sharding.whole else 0,
            gathering=ahead,
            freed=self._freed(ends=size),
        )

    def _loss(self, at: _At, base: int, logits_bytes: int, *, gathering: int) -> Moment:
        assert self.head is not None, "the loss is where the head is"
        moment = self._moment(
            "loss",
            at,
            activations=base - self.head.kept_bytes,
            logits=logits_bytes,
            ends=self.groups.head,
            gathering=gathering,
        )
        # Holes of the whole loss, where it is fullest.
        lost_bytes = self.head.laid_out_bytes - logits_bytes if logits_bytes == self.head.peak_bytes else 0
        return moment._replace(lost_bytes=lost_bytes)

    def _blocks(self, at: _At) -> Iterator[Moment]:
        """Backward of the last block, of the one before it, and of the first."""
        sharding, root = self.sharding, self.root
        layers, block = self.load.stages[at.stage], self.groups.block
        rest = at.base - self.whole[at.stage] + self.kept[at.stage] - self._kept(layers)
        head = self.groups.head if at.stage == self.last and not root else 0
        ends, staying = self.groups.head - root, sharding.staying(1)
        scattered = sharding.scattered_bytes(block)
        block_gradients = self._block_gradients
        back = sharding.gradient_bytes(block_gradients + root) + scattered + sharding.again_bytes(block)
        before_back = sharding.gradient_bytes(root)
        for done in self._backwards(len(layers)):
            before = layers[: len(layers) - done - 1]
            _, peaks = self._block(layers[len(before)])
            ahead = self._ahead() if before else 0
            progress = head + done * block
            kept = rest + self._kept(before)
            yield self._moment(
                "backward of a block",
                at,
                activations=kept + peaks.backward_bytes,
                blocks=1 + staying * done,
                ends=staying * head,
                whole=(scattered if done else sharding.scattered_bytes(head)) + before_back,
                progress=progress,
                gathering=ahead,
                freed=self._freed(blocks=done, ends=ends),
            )
            yield self._moment(
                "backward of a block",
                at,
                activations=kept + self._stream_bytes,
                blocks=staying * (done + 1),
                ends=staying * head,
                whole=back,
                progress=progress,
                gathering=ahead,
                freed=self._freed(blocks=done + 1, ends=ends),
            )

    @staticmethod
    def _backwards(layers: int) -> tuple[int, ...]:
        """Blocks that are done: none, one, or all but the last."""
        return (0, 1, layers - 1) if layers > 2 else (0, 1)[:layers]

    def _embedding(self, at: _At) -> Iterator[Moment]:
        """The table's gradient: as it is made, as it is copied to be summed, and beside its sum.

        A tied weight has that of the head already, and the sum of both is made beside them. Where there are several
        ranks, torch's loop over a group's gradients has its hand on the last of them until the sum is there.
        """
        sharding = self.sharding
        size, work = self.groups.embedding or self.root, self.work
        if not size or at.stage:
            return
        head = self.groups.head if self.last == 0 and not self.root else 0
        progress = len(self.load.stages[0]) * self.groups.block + head
        blocks, ends = sharding.staying(len(self.load.stages[0])), sharding.staying(head)
        rest = at.base - self.whole[0]
        gradient, scattered = sharding.gradient_bytes(size), sharding.scattered_bytes(size)
        yield self._moment(
            "gradient of the embedding",
            at,
            activations=rest + work.whole_stream_bytes * (2 if work.copies_sequences else 1) + work.stream_bytes,
            blocks=blocks,
            ends=ends,
            whole=gradient + 2 * sharding.gradient_bytes(self.root) + sharding.scattered_bytes(self.groups.block),
            progress=progress,
            freed=self._freed(blocks=self.groups.blocks, ends=self.groups.head - self.root),
        )
        if sharding.sums_late or sharding.whole:
            ways = [(sharding.settled_bytes(size), size)]
        else:
            beside = (
                sharding.copied_bytes(size)
                + sharding.again_bytes(size)
                + (gradient if sharding.lingers and not self.root else 0)
            )
            ways = [(gradient + scattered, 0), (scattered + beside, size)]
        for whole, more in ways:
            yield self._moment(
                "gradient of the embedding",
                at,
                activations=rest,
                blocks=blocks,
                ends=ends,
                whole=whole,
                progress=progress + more,
                freed=self._freed(blocks=self.groups.blocks, ends=self.groups.embedding + self.groups.head)
                or self.root * sharding.gathered_width_bytes,
            )

    def _weights(self, at: _At) -> Moment:
        """A backward for the weights alone: gradients of a whole stage at once, which used up its activations."""
        size = self.sizes[at.stage]
        return self._moment(
            "gradients of the weights",
            at,
            activations=at.base - self.whole[at.stage] - self.put_off[at.stage],
            whole=self.sharding.settled_bytes(size),
            progress=size,
        )

    def _sum(self, at: _At) -> Moment:
        """The first group of a stage, whose gradient is copied, sent and cast; its weights are free by then.

        torch's runtime of several stages has freed more of them after a stage's last backward.
        """
        sharding = self.sharding
        first = self.groups.embedding if at.stage == 0 and self.groups.embedding else self.groups.block
        received = sharding.summed_bytes(first) if sharding.casts_sums else 0
        if not self.last:
            received += sharding.received_bytes(first) + sharding.divided_bytes(first)
            received -= 0 if sharding.lingers else sharding.scattering_bytes(first)
        moment = self._moment(
            "sum of gradients",
            at,
            activations=at.base,
            blocks=sharding.staying(len(self.load.stages[at.stage])),
            ends=sharding.staying(self.groups.head if at.stage == self.last and self.head is not None else 0),
            whole=sharding.scattering_bytes(first) + received,
            progress=self.sizes[at.stage],
        )
        freed = first * sharding.width_bytes(block=first == self.groups.block)
        if first == self.groups.embedding and not sharding.keeps_gathered:
            freed = 0
        return moment._replace(communication_bytes=moment.communication_bytes - freed)

    # ---- what stands beside activations --------------------------------------------------------

    def _moment(
        self,
        name: str,
        at: _At,
        *,
        activations: int,
        logits: int = 0,
        blocks: int = 0,
        ends: int = 0,
        whole: int = 0,
        progress: int = 0,
        gathering: int = 0,
        freed: int = 0,
    ) -> Moment:
        """Adds gathered weights and gradients; `progress` are elements of this stage that have theirs already.

        `freed` are bytes of weights that stayed gathered until their backward, which is over.
        """
        sharding = self.sharding
        if sharding.sums_late:
            late = (at.late + (self.sizes[at.stage] if at.graded else progress)) * sharding.reduce_width_bytes
            summed = at.summed_bytes
        else:
            late, summed = 0, self._summed(at.late + (self.sizes[at.stage] if at.graded else progress))
        gathered = self._all_gathered
        if gathered is None:
            gathered = sharding.whole_bytes(self.groups, blocks=blocks, ends=ends or self.root)
        return Moment(name, activations, logits, whole + late + gathered - freed, gathering, 0, summed)

    def _summed(self, size: int) -> int:
        """Sums of so many elements, which are there for all from an earlier accumulation step on.

        Copies of the model sum what shards have summed, and torch keeps that until the step ends, cast or not; in
        earlier steps it is all that there is.
        """
        sharding = self.sharding
        if not (sharding.replicates and sharding.casts_sums):
            return self.load.static.grads_bytes if sharding.accumulates else sharding.summed_bytes(size)
        return sharding.summed_bytes(size) + sharding.uncast_bytes(sum(self.sizes) if sharding.accumulates else size)

    def _freed(self, *, blocks: int = 0, ends: int = 0) -> int:
        """Bytes of weights that are not gathered any more, of those that stay until backward; a pipeline's stay."""
        sharding = self.sharding
        if not sharding.keeps_gathered or sharding.sums_late:
            return 0
        return ends * sharding.gathered_width_bytes + blocks * self.groups.block * sharding.width_bytes(block=True)

    def _size(self, stage: int) -> int:
        """Weights of one stage, in elements before FSDP."""
        ends = (self.groups.embedding if stage == 0 else 0) + (self.groups.head if stage == self.last else 0)
        return len(self.load.stages[stage]) * self.groups.block + ends

    def _ahead(self) -> int:
        """The next block of backward on its way; none where weights stay gathered."""
        sharding = self.sharding
        return 0 if sharding.keeps_gathered else sharding.buffer_bytes(self.groups.block, block=True)
