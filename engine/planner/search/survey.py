"""Which ways are judged, and in what order: the whole world coarsely, what is promising in full.

Knows three rounds. First every mesh with its usual schedules, uncommon options left out; then the best meshes of each
kind with every schedule; then the best of those with every option and batch. Does not rank for a goal (order).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from engine.config import ScheduleName
from engine.keys import with_values
from engine.planner.batch import Batch
from engine.planner.held import room_of
from engine.planner.mesh import Mesh
from engine.planner.recompute import Mode
from engine.planner.search.evaluate import Point, Way, Ways
from engine.planner.search.layouts import Free, Layout, layouts
from engine.planner.search.options import LOCAL_BATCH, MICROBATCH, Options, all_options, plain_options
from engine.planner.search.question import Question, Refusal
from engine.shapes import ModelShape

Kind: TypeAlias = frozenset[str]
"""The axes beside FSDP that a layout uses: `tp`, `pp`, `cp`, and `replicate`."""

_USUAL: frozenset[ScheduleName] = frozenset({"1F1B", "Interleaved1F1B"})
_MICROBATCHES = (1, 2, 4, 8, 16)
# From the least memory to the most.
_LEAST_FIRST: tuple[Mode, ...] = ("full", "memory_budget", "selective", "none")
# Meshes of each kind, and in all, that are looked at with every schedule; layouts that are tried with every option.
_MESHES_OF_A_KIND, _MESHES, _LAYOUTS = 1, 12, 6


def kind_of(mesh: Mesh) -> Kind:
    """The axes beside FSDP that a mesh uses."""
    degrees = {"tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp, "replicate": mesh.dp_replicate}
    return frozenset(name for name, degree in degrees.items() if degree > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A way with the batches that fit, the smallest first, and the bytes that each needs."""

    way: Way
    batches: list[tuple[Batch, int]]
    most_tokens_per_s: float


class Survey:
    """What was judged so far: points that fit, and of each kind the one that came nearest to it.

    `refused` holds what each rule said when it first refused one, `searched` counts the points whose memory was
    worked out.
    """

    def __init__(self, question: Question, shape: ModelShape, refusal: Refusal) -> None:
        self.points: dict[tuple[Layout, Options, Batch], Point] = {}
        self.tightest: dict[Kind, Point] = {}
        self.refused: dict[str, str] = {}
        self.searched = 0
        self._question, self._shape, self._refusal = question, shape, refusal
        self._ways = Ways(question.config, question.cluster, shape)
        gpu = question.cluster.gpu
        self._most_bytes = int(room_of(gpu.name) * gpu.memory_bytes)
        self._judged: set[Layout] = set()
        self._fastest: dict[tuple[Kind, bool], float] = {}

    def run(self) -> None:
        """All three rounds."""
        question = self._question
        everything = list(layouts(question, self._shape))
        usual = [each for each in everything if each.schedule in _USUAL and each.stages_a_rank <= 2] or everything
        for layout in usual:
            self._judge_coarsely(layout)
        best = {layout.mesh for layout in self._best(_MESHES_OF_A_KIND, _MESHES)}
        for layout in everything:
            if layout.mesh in best:
                self._judge_coarsely(layout)
        for layout in self._best(0, _LAYOUTS):
            for fit in self._fitting(layout, all_options(question, layout)):
                if not self._is_refused(fit.way):
                    self._add(fit.way, fit.batches)

    def finds_any(self) -> bool:
        """Whether anything fits: layouts are judged until one does."""
        for layout in layouts(self._question, self._shape):
            options = sorted(plain_options(self._question, layout), key=_by_memory)[:1]
            if any(not self._is_refused(fit.way) for fit in self._fitting(layout, options)):
                return True
        return False

    def _judge_coarsely(self, layout: Layout) -> None:
        """Judges a layout in its usual ways, each with the largest batch that fits.

        Those that cannot be the fastest of their kind are left out: the fastest by their kernels come first.
        """
        if layout in self._judged:
            return
        self._judged.add(layout)
        refused: set[Options] = set()
        fits = self._fitting(layout, plain_options(self._question, layout))
        for fit in sorted(fits, key=lambda fit: -fit.most_tokens_per_s):
            best = self._fastest.get((kind_of(layout.mesh), fit.way.options.float8), 0.0)
            if fit.way.options in refused or fit.most_tokens_per_s < best:
                continue
            if self._is_refused(fit.way):
                refused.add(fit.way.options)
            else:
                self._add(fit.way, fit.batches[-1:])

    def _fitting(self, layout: Layout, options: Iterable[Options]) -> Iterator[_Fit]:
        """Ways that fit, by memory alone.

        Less recomputation never needs less memory, nor does a larger microbatch: what is larger than something that
        does not fit is not looked at.
        """
        too_large: dict[Options, float] = {}
        for each in sorted(options, key=_by_memory):
            alike = replace(each, mode="none")
            for microbatch in self._microbatches(layout):
                if (microbatch or 1) >= too_large.get(alike, inf):
                    break
                way = self._ways.of(layout, each, microbatch)
                batches = self._batches(way)
                if not batches:
                    too_large[alike] = microbatch or 1
                    break
                most = way.most_tokens_per_s(batches[-1][0], self._question.cluster)
                yield _Fit(way=way, batches=batches, most_tokens_per_s=most)

    def _microbatches(self, layout: Layout) -> list[int | None]:
        if layout.mesh.pp == 1:
            return [None]
        return list(Free(self._question).of(MICROBATCH, _MICROBATCHES))

    def _batches(self, way: Way) -> list[tuple[Batch, int]]:
        """The batches of a way that fit, with what each needs."""
        batches = way.batches()
        if not batches:
            return []
        needed: dict[Batch, int] = {}

        def fill(batch: Batch) -> int:
            if batch not in needed:
                needed[batch] = way.needed_bytes(batch)
            return needed[batch]

        if fill(batches[0]) > self._most_bytes:
            self._note_too_large(way, batches[0], fill(batches[0]))
            count = 0
        else:
            count = bisect_right(batches, self._most_bytes, key=fill)
        self.searched += len(needed)
        return [(batch, fill(batch)) for batch in batches[:count]]

    def _is_refused(self, way: Way) -> bool:
        config = with_values(way.config, {LOCAL_BATCH: way.batches()[0].local})
        reason = self._refusal(config, self._question.cluster)
        if reason is not None:
            self.refused.setdefault(reason.partition(":")[0], reason)
        return reason is not None

    def _add(self, way: Way, batches: Iterable[tuple[Batch, int]]) -> None:
        for batch, needed_bytes in batches:
            point = way.point(batch, needed_bytes, cluster=self._question.cluster)
            self.points[way.layout, way.options, batch] = point
            key = kind_of(way.layout.mesh), way.options.float8
            self._fastest[key] = max(self._fastest.get(key, 0.0), point.tokens_per_s_per_gpu or 0.0)

    def _note_too_large(self, way: Way, batch: Batch, needed_bytes: int) -> None:
        kind = kind_of(way.layout.mesh)
        nearest = self.tightest.get(kind)
        if (nearest is None or needed_bytes < nearest.needed_bytes) and not self._is_refused(way):
            self.tightest[kind] = way.point(batch, needed_bytes, cluster=None)

    def _best(self, of_a_kind: int, in_all: int) -> list[Layout]:
        """The fastest layouts, and of each kind the fastest few; where no speed is known the smallest."""
        order = sorted(self.points.values(), key=lambda point: (-(point.tokens_per_s_per_gpu or 0), point.needed_bytes))
        ranked = list(dict.fromkeys(point.layout for point in order))
        found = dict.fromkeys(ranked[:in_all])
        kinds: dict[Kind, int] = {}
        for layout in ranked:
            kind = kind_of(layout.mesh)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= of_a_kind:
                found[layout] = None
        return list(found)


def _by_memory(options: Options) -> int:
    """The place of a way to run among those with other recomputation, the least memory first."""
    return _LEAST_FIRST.index(options.mode)
