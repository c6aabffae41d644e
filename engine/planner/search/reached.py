"""What a search has reached, and whether a way that is only bounded could still be told of.

Knows what an answer shows: the best layouts, the best of each kind, and points that no other beats in speed and memory.
So a way is left out only where the answer is the same with and without it. Does not judge (survey) or rank (order).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from engine.planner.batch import WORTH
from engine.planner.mesh import Mesh
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import Kind, Layout, kind_of
from engine.planner.search.options import Options, experience
from engine.planner.search.order import AS_FAST, economical_batches, room_bytes
from engine.planner.search.question import GOALS, Question

# What is slower than another by more is never chosen before it: not as equally fast and simpler, and not where of the
# other a smaller batch stands that is within a percent.
_MARGIN = 1.001 * AS_FAST * WORTH
# Layouts that may be refused when they are made whole, so that the next ones move up.
_SPARE = 3


class Reached:
    """Speeds and memory of what was judged."""

    def __init__(self, question: Question) -> None:
        self._question, self._trust, self._room_bytes = question, GOALS[question.goal].trust, room_bytes(question)
        self._best_of_layout: dict[tuple[Mesh, str], float] = {}
        self._best_of_kind: dict[Kind, float] = {}
        self._front: list[tuple[int, float]] = []

    def add(self, point: Point) -> None:
        """A point that was judged."""
        if point.needed_bytes <= self._room_bytes:
            layout, score = point.layout, self._score(point.layout, point.options, point.tokens_per_s_per_gpu or 0.0)
            key, kind = (layout.mesh, layout.schedule), kind_of(layout.mesh)
            self._best_of_layout[key] = max(score, self._best_of_layout.get(key, 0.0))
            self._best_of_kind[kind] = max(score, self._best_of_kind.get(kind, 0.0))

    def settle(self, points: Iterable[Point]) -> None:
        """All that there will be of a layout with its options: those of them that stay are known now."""
        kept = economical_batches(self._question, points)
        self._front += [(point.needed_bytes, point.tokens_per_s_per_gpu or 0.0) for point in kept]

    def outruns(self, layout: Layout, options: Options, tokens_per_s: float) -> bool:
        """Whether enough layouts, and one of the kind, are faster than one that is no faster than this.

        They leave the goal's room, so that they come before it however little it needs.
        """
        shown = self._question.top + _SPARE
        fastest = nlargest(shown, self._best_of_layout.values())
        least = min(fastest[-1] if len(fastest) == shown else 0.0, self._best_of_kind.get(kind_of(layout.mesh), 0.0))
        return _MARGIN * self._score(layout, options, tokens_per_s) < least

    def beats(self, needed_bytes: int, tokens_per_s: float) -> bool:
        """Whether something takes no more memory than this, and is as fast."""
        return any(needed <= needed_bytes and rate >= tokens_per_s for needed, rate in self._front)

    def _score(self, layout: Layout, options: Options, tokens_per_s: float) -> float:
        return tokens_per_s / self._trust ** experience(layout, options)
