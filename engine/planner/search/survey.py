"""Which ways are judged, and in what order: the whole world coarsely, what is promising in full.

Knows three rounds. First every mesh with its usual schedules, uncommon options left out; then the best meshes of each
kind with every schedule; then the best of those with every option and batch. Does not rank for a goal (order).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from engine.config import ScheduleName
from engine.keys import with_legal_values
from engine.planner.batch import Batch
from engine.planner.held import room_of
from engine.planner.mesh import Mesh
from engine.planner.recompute import Mode
from engine.planner.schedule import ZERO_BUBBLE
from engine.planner.search.bound import Bound
from engine.planner.search.evaluate import Point, Way, Ways
from engine.planner.search.layouts import REPLICATE, Free, Kind, Layout, kind_of, layouts
from engine.planner.search.options import LOCAL_BATCH, MICROBATCH, Options, all_options, plain_options
from engine.planner.search.order import WORTH_SHOWING, ranked, room_bytes
from engine.planner.search.question import GOALS, Question, Refusal
from engine.planner.search.reached import Reached
from engine.shapes import ModelShape

_USUAL: frozenset[ScheduleName] = frozenset({"1F1B", "Interleaved1F1B"})
_MICROBATCHES = (1, 2, 4, 8, 16)
# From the least memory to the most.
_LEAST_FIRST: tuple[Mode, ...] = ("full", "memory_budget", "selective", "none")
# The mixture of axes that has a name of its own: the others have to be faster than all that was seen.
_THREE_AXES: Kind = frozenset({"tp", "pp"})
# Meshes that are looked at with every schedule, and layouts that are tried with every option: one of so many, at least.
_ONE_OF, _MESHES, _LAYOUTS = 25, 6, 4


class Survey:
    """What was judged so far: points that fit, and of each kind the one that came nearest to it.

    `refused` holds what each rule said when it first refused one, `searched` counts what was judged, by memory or by
    the bound of its speed.
    """

    def __init__(self, question: Question, shape: ModelShape, refusal: Refusal) -> None:
        self.points: dict[tuple[Layout, Options, Batch], Point] = {}
        self.tightest: dict[Kind, Point] = {}
        self.refused: dict[str, str] = {}
        self.searched = 0
        self._question, self._shape, self._refusal = question, shape, refusal
        self._ways = Ways(question.config, question.cluster, shape)
        self._bound = Bound(question.config, question.cluster, self._ways)
        self._goal, gpu = GOALS[question.goal], question.cluster.gpu
        self._room_bytes = room_bytes(question)
        self._most_bytes = int(room_of(gpu.name) * gpu.memory_bytes)
        self._judged: set[Layout] = set()
        self._plain: dict[tuple[object, ...], list[Options]] = {}
        self._too_large: dict[Mesh, dict[Options, float]] = {}
        self._fastest: dict[Kind, float] = {}
        self._reached = Reached(question)
        self._alike: dict[tuple[Layout, Options], dict[Batch, Point]] = {}
        self._left_out: dict[tuple[Layout, Options], list[int | None]] = {}

    def run(self) -> None:
        """All three rounds; the simplest layout needs no uncommon schedule, so that the second is left out."""
        everything = sorted(layouts(self._question, self._shape), key=lambda layout: len(kind_of(layout.mesh)))
        usual = [each for each in everything if each.schedule in _USUAL and each.stages_a_rank <= 2] or everything
        for layout in usual:
            self._judge_coarsely(layout)
        if not self._goal.is_simplest:
            best = {layout.mesh for layout in self._best(1, max(_MESHES, len(usual) // _ONE_OF))}
            for layout in everything:
                if layout.mesh in best:
                    self._judge_coarsely(layout)
        for layout in self._best(0, max(_LAYOUTS, len(usual) // _ONE_OF)):
            self._judge_in_full(layout)

    def finds_any(self) -> bool:
        """Whether anything fits: layouts are judged until one does. Copies of the model only take more."""
        fixes_copies = Free(self._question).fixes(REPLICATE)
        for layout in layouts(self._question, self._shape):
            if layout.mesh.dp_replicate > 1 and not fixes_copies:
                continue
            options = min(plain_options(self._question, layout), key=_by_memory, default=None)
            if options and any(not self._is_refused(way) for way, _ in self._fitting(layout, options, {})):
                return True
        return False

    def smallest(self, layout: Layout, options: Options) -> Point | None:
        """A layout in one way with the batch that takes least; without its time. None where it takes no batch."""
        microbatch = None if layout.mesh.pp == 1 else self._microbatches(layout)[0]
        way = self._ways.of(layout, options, microbatch)
        batch = next(iter(way.batches), None)
        return None if batch is None else way.point(batch, way.needed_bytes(batch), cluster=None)

    def alike(self, layout: Layout, options: Options) -> list[Point]:
        """All points of a layout with its options, judged now where nothing but this asks for them."""
        microbatches = self._left_out.pop((layout, options), None)
        if microbatches is not None:
            self._judge_every_batch(layout, options, microbatches, {})
        return list(self._alike.get((layout, options), {}).values())

    def _judge_coarsely(self, layout: Layout) -> None:
        """Judges a layout in its usual ways, with the largest batches, or for simplicity the smallest.

        Those that cannot be the fastest of their kind are left out: the fastest by their kernels come first.
        """
        if layout in self._judged:
            return
        self._judged.add(layout)
        kind = kind_of(layout.mesh)
        too_large, rated = self._too_large_of(layout), self._plain_options(layout)
        for place, options in enumerate(rated):
            if self._bound.tokens_per_s(layout, options) < self._fast_enough(kind):
                self.searched += len(rated) - place
                break
            for way, batches in self._fitting(layout, options, too_large):
                if self._is_refused(way):
                    break
                self._add(way, batches)

    def _plain_options(self, layout: Layout) -> list[Options]:
        """The usual ways to run a layout, those with the fastest kernels first."""
        mesh = layout.mesh
        key = mesh.tp, mesh.cp, mesh.pp > 1, mesh.fsdp > 1, layout.schedule in ZERO_BUBBLE
        if key not in self._plain:
            options = plain_options(self._question, layout)
            options.sort(key=lambda each: (-self._bound.tokens_per_s(layout, each), -_by_memory(each)))
            self._plain[key] = options
        return self._plain[key]

    def _fast_enough(self, kind: Kind) -> float:
        """What a way has to be able to reach: the fastest of its kind, or of all for mixtures without a name."""
        if self._goal.is_simplest:
            return 0.0
        if len(kind) <= 1 or kind == _THREE_AXES:
            return self._fastest.get(kind, 0.0)
        return max(self._fastest.values(), default=0.0)

    def _judge_in_full(self, layout: Layout) -> None:
        """Judges a layout in every way, with every batch that fits, and microbatches near to its best."""
        best = max(
            (point for point in self.points.values() if point.layout == layout),
            key=lambda point: (point.tokens_per_s_per_gpu or 0.0, -point.needed_bytes),
        ).batch.microbatch
        near = [size for size in self._microbatches(layout) if size is None or best <= 2 * size <= 4 * best]
        too_large = self._too_large_of(layout)
        least = 0.0 if self._goal.is_simplest else WORTH_SHOWING * max(self._fastest.values())
        for options in sorted(all_options(self._question, layout), key=_by_memory):
            most = self._bound.tokens_per_s(layout, options)
            if most < least:
                self.searched += 1
            elif self._is_beaten(layout, options, near[0], most):
                self.searched += 1
                self._left_out[layout, options] = near
            else:
                self._judge_every_batch(layout, options, near, too_large)

    def _judge_every_batch(
        self, layout: Layout, options: Options, microbatches: list[int | None], too_large: dict[Options, float]
    ) -> None:
        for way, batches in self._fitting(layout, options, too_large, microbatches=microbatches):
            if self._is_refused(way):
                break
            self._add(way, batches)
        self._reached.settle(self._alike.get((layout, options), {}).values())

    def _is_beaten(self, layout: Layout, options: Options, microbatch: int | None, most: float) -> bool:
        """Whether nothing that is told of a search changes with this way, for all that its bounds say.

        Its smallest microbatch and batch need the least memory.
        """
        if self._goal.is_simplest or not self._reached.outruns(layout, options, most):
            return False
        way = self._ways.of(layout, options, microbatch)
        if not way.batches:
            return False
        needed_bytes = way.needed_bytes(way.batches[0], enough=self._most_bytes)
        return needed_bytes <= self._most_bytes and self._reached.beats(needed_bytes, most)

    def _too_large_of(self, layout: Layout) -> dict[Options, float]:
        """What is known not to fit: 1F1B holds less than the same mesh with its stages interleaved."""
        known = self._too_large.setdefault(layout.mesh, {})
        if layout.schedule == "1F1B":
            return known
        return dict(known) if layout.schedule == "Interleaved1F1B" else {}

    def _fitting(
        self,
        layout: Layout,
        options: Options,
        too_large: dict[Options, float],
        *,
        microbatches: Sequence[int | None] | None = None,
    ) -> Iterator[tuple[Way, list[tuple[Batch, int]]]]:
        """Ways that fit, with the batches that do and what each needs, from the smallest microbatch on.

        A larger microbatch never needs less memory, nor does less recomputation: `too_large` keeps the least
        microbatch that does not fit, for each options.
        """
        modes = _LEAST_FIRST[: _by_memory(options) + 1]
        limit = min(too_large.get(replace(options, mode=mode), inf) for mode in modes)
        for microbatch in microbatches or self._microbatches(layout):
            if (microbatch or 1) >= limit:
                return
            way = self._ways.of(layout, options, microbatch)
            batches = self._batches(way, every=microbatches is not None)
            if not batches:
                too_large[options] = microbatch or 1
                return
            yield way, batches

    def _microbatches(self, layout: Layout) -> list[int | None]:
        if layout.mesh.pp == 1:
            return [None]
        sizes = _MICROBATCHES[:1] if self._goal.is_simplest else _MICROBATCHES
        return list(Free(self._question).of(MICROBATCH, sizes))

    def _batches(self, way: Way, *, every: bool) -> list[tuple[Batch, int]]:
        """The batches of a way that fit, with what each needs.

        Not `every` one: the smallest for simplicity, else the largest that leaves the goal's room and the largest.
        """
        batches = way.batches
        if not batches:
            return []
        needed: dict[tuple[int, ...], int] = {}

        def fill(batch: Batch) -> int:
            load = way.load(batch)
            if load not in needed:
                needed[load] = way.needed_bytes(batch, enough=self._most_bytes)
            return needed[load]

        is_pipeline = way.layout.mesh.pp > 1
        smallest = self._goal.is_simplest and not (every or is_pipeline)
        fitting = batches[: _count_within(self._most_bytes, batches[:1] if smallest else batches, fill)]
        if not fitting:
            self._note_too_large(way, batches[0], fill(batches[0]))
        # Fewer microbatches only make the bubble of a pipeline longer.
        kept = fitting[-2:] if is_pipeline else fitting
        if not every and self._goal.is_simplest:
            kept = kept[:1]
        elif not every:
            roomy = _count_within(self._room_bytes, kept, fill)
            kept = kept[max(0, roomy - 1) : roomy] + kept[max(roomy, len(kept) - 1) :]
        found = [(batch, fill(batch)) for batch in kept]
        self.searched += len(needed)
        return found

    def _is_refused(self, way: Way) -> bool:
        config = with_legal_values(way.config, {LOCAL_BATCH: way.batches[0].local})
        reason = self._refusal(config, self._question.cluster)
        if reason is not None:
            self.refused.setdefault(reason.partition(":")[0], reason)
        return reason is not None

    def _add(self, way: Way, batches: Iterable[tuple[Batch, int]]) -> None:
        for batch, needed_bytes in batches:
            point = way.point(batch, needed_bytes, cluster=self._question.cluster)
            self.points[way.layout, way.options, batch] = point
            self._alike.setdefault((way.layout, way.options), {})[batch] = point
            self._reached.add(point)
            kind = kind_of(way.layout.mesh)
            self._fastest[kind] = max(self._fastest.get(kind, 0.0), point.tokens_per_s_per_gpu or 0.0)

    def _note_too_large(self, way: Way, batch: Batch, needed_bytes: int) -> None:
        kind = kind_of(way.layout.mesh)
        nearest = self.tightest.get(kind)
        least_bytes = inf if nearest is None else nearest.needed_bytes
        if needed_bytes < least_bytes:
            whole_bytes = way.needed_bytes(batch, enough=least_bytes)
            if whole_bytes < least_bytes and not self._is_refused(way):
                self.tightest[kind] = way.point(batch, whole_bytes, cluster=None)

    def _best(self, of_a_kind: int, in_all: int) -> list[Layout]:
        """The layouts that the goal puts first, and of each kind the first few."""
        order = list(dict.fromkeys(point.layout for point in ranked(self._question, list(self.points.values()))))
        found = dict.fromkeys(order[:in_all])
        kinds: dict[Kind, int] = {}
        for layout in order:
            kind = kind_of(layout.mesh)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= of_a_kind:
                found[layout] = None
        return list(found)


def _count_within(most_bytes: float, batches: Sequence[Batch], needed: Callable[[Batch], int]) -> int:
    """How many batches, from the smallest on, need no more: a larger one never needs less."""
    if not batches or needed(batches[-1]) <= most_bytes:
        return len(batches)
    return 0 if needed(batches[0]) > most_bytes else bisect_right(batches, most_bytes, key=needed)


def _by_memory(options: Options) -> int:
    """The place of a way to run among those with other recomputation, the least memory first."""
    return _LEAST_FIRST.index(options.mode)
