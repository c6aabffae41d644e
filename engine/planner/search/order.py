"""What a goal puts first, and what no other layout beats.

Knows how speed, memory and simplicity are weighed. Does not judge layouts (survey) or word reasons (reasons).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from engine.planner.batch import ENOUGH_TOKENS, WORTH
from engine.planner.held import room_of
from engine.planner.mesh import Mesh
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options, complexity, experience
from engine.planner.search.question import GOALS, Question

# A layout that is faster by less is not worth showing as another trade of speed for memory.
_STEP = 1.01
# Speeds that are nearer to each other than this are equal: on runs that it had not seen the planner errs by 2.1 % on
# average (tests/bench/holdout_h200.json), so that it cannot tell which of them is faster.
AS_FAST = 1.02
# What is slower than this share of the fastest is no trade of speed for memory that anybody would make.
WORTH_SHOWING = 0.5


def ranked(question: Question, points: Collection[Point]) -> Iterator[Point]:
    """Points from the best on. Those that leave the goal's room come before those that only fit.

    Of points as fast as each other, as far as the planner can tell, the simplest comes first: what splits a layer or
    the model least, and then what leaves most memory. Where simplicity goes before speed, the smallest step of equally
    simple ones comes first, which is the soonest seen, and then the fastest.
    """
    goal, room = GOALS[question.goal], room_bytes(question)

    def score(point: Point) -> float:
        return (point.tokens_per_s_per_gpu or 0.0) / goal.trust ** experience(point.layout, point.options)

    def by_simplicity(point: Point) -> tuple[float, ...]:
        return *burden(point), point.needed_bytes, -score(point)

    def by_step(point: Point) -> tuple[float, ...]:
        return *burden(point), point.batch.local, -score(point), point.needed_bytes

    for fits_well in (True, False):
        left = [point for point in points if (point.needed_bytes <= room) == fits_well]
        if goal.is_simplest:
            yield from sorted(left, key=by_step)
            continue
        left.sort(key=score, reverse=True)
        while left:
            least = score(left[0]) / AS_FAST
            count = next((place for place, point in enumerate(left) if score(point) < least), len(left))
            left.remove(chosen := min(left[:count], key=by_simplicity))
            yield chosen


def burden(point: Point) -> tuple[int, int, bool]:
    """What a person has to follow: how many things, in how many pieces the model is, and whether work is repeated."""
    mesh = point.layout.mesh
    return complexity(point.layout, point.options), mesh.tp * mesh.cp * mesh.pp, point.options.mode != "none"


def room_bytes(question: Question) -> float:
    """What a layout may fill of a GPU for the goal."""
    gpu = question.cluster.gpu
    return min(GOALS[question.goal].room, room_of(gpu.name)) * gpu.memory_bytes


def economical_batches(question: Question, points: Iterable[Point]) -> list[Point]:
    """Of each layout and its options the smallest batch within a percent of the fastest that leaves the goal's room.

    Beside it the same of those that only fit. Where no speed is known the largest that is no more than enough to keep
    a machine busy.
    """
    enough, room = ENOUGH_TOKENS // question.config.training.seq_len, room_bytes(question)
    kept: list[Point] = []
    by_way: dict[tuple[Layout, Options, bool], list[Point]] = {}
    for point in points:
        by_way.setdefault((point.layout, point.options, point.needed_bytes <= room), []).append(point)
    for alike in by_way.values():
        alike.sort(key=lambda point: (point.batch.local, point.needed_bytes))
        best = max(point.tokens_per_s_per_gpu or 0.0 for point in alike)
        if best:
            kept.append(next(point for point in alike if (point.tokens_per_s_per_gpu or 0.0) * WORTH >= best))
        else:
            kept.append(([point for point in alike if point.batch.microbatch <= enough] or alike[:1])[-1])
    return kept


def best_of_layouts(points: Iterable[Point]) -> Iterator[Point]:
    """The first point of each mesh and schedule, in the order given."""
    seen: set[tuple[Mesh, str]] = set()
    for point in points:
        key = point.layout.mesh, point.layout.schedule
        if key not in seen:
            seen.add(key)
            yield point


def pareto(points: Collection[Point], most: int) -> list[Point]:
    """Points that no other beats in both speed and memory, the fastest first; each step down saves memory.

    At most so many of them, spread evenly, and none that nobody would take.
    """
    least = WORTH_SHOWING * max((point.tokens_per_s_per_gpu or 0.0 for point in points), default=0.0)
    worthy = [point for point in points if (point.tokens_per_s_per_gpu or 0.0) >= least]
    front: list[Point] = []
    for point in sorted(worthy, key=lambda point: (point.needed_bytes, -(point.tokens_per_s_per_gpu or 0.0))):
        rate = point.tokens_per_s_per_gpu or 0.0
        if not front or rate > _STEP * (front[-1].tokens_per_s_per_gpu or 0.0):
            front.append(point)
    front.reverse()
    if len(front) <= most:
        return front
    return [front[round(index * (len(front) - 1) / (most - 1))] for index in range(most)]
