"""The best layouts of a model on a cluster for a goal, and why the others lost.

Knows the order of a search: judge the world, rank it, offer what every rule lets through. `search` is handed the rules,
because they build on plans.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from engine.config import Config
from engine.keys import value_of, with_values
from engine.planner.plan import Plan
from engine.planner.search.alternatives import alternatives, axes
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import Free
from engine.planner.search.offer import Offer
from engine.planner.search.options import LOCAL_BATCH, SEARCHED
from engine.planner.search.order import best_of_layouts, economical_batches, pareto, ranked
from engine.planner.search.question import GOALS, Alternative, Candidate, Found, Goal, GoalName, Question, Refusal
from engine.planner.search.reasons import of_winner, verdict
from engine.planner.search.survey import Survey
from engine.shapes import shape_of

__all__ = [
    "GOALS",
    "SEARCHED",
    "Alternative",
    "Candidate",
    "Found",
    "Goal",
    "GoalName",
    "Question",
    "Refusal",
    "axes",
    "opened",
    "search",
]

_MOST_OF_THE_FRONT = 8


def search(question: Question, *, refusal: Refusal) -> Found:
    """The layouts that fit, best first; none where nothing fits. KeyError for a model that is not known."""
    started = perf_counter()
    written = {key: value_of(question.config, key) for key in SEARCHED} if question.is_written else None
    question = opened(question)
    survey = Survey(question, shape_of(question.config.model), refusal)
    with _uncollected():
        survey.run()
    offer = Offer(question, refusal)
    points = list(survey.points.values())
    knows_speed = any(point.tokens_per_s_per_gpu for point in points)
    if not (GOALS[question.goal].is_simplest and knows_speed):
        points = economical_batches(question, points)
    best = _offered(offer, best_of_layouts(ranked(question, points)), question.top)
    front = _offered(offer, pareto(points, _MOST_OF_THE_FRONT), _MOST_OF_THE_FRONT)
    winner = best[0] if best else None

    def candidate(shown: tuple[Point, Plan]) -> Candidate:
        assert winner is not None, "what is shown stands beside a winner"
        reason = of_winner(question, winner[1]) if shown == winner else verdict(question, shown, winner)
        return Candidate(values=offer.keys(shown[0].values()), plan=shown[1], reason=reason)

    return Found(
        candidates=tuple(map(candidate, best)),
        pareto=tuple(map(candidate, front if winner else ())),
        rejected=tuple(alternatives(question, survey, offer, winner, written)) if winner else (),
        refused=tuple(survey.refused.values()),
        least_bytes=min((point.needed_bytes for point in survey.tightest.values()), default=None),
        searched=survey.searched,
        seconds=perf_counter() - started,
    )


def opened(question: Question) -> Question:
    """The question with every searched key that is not fixed at its default, so that nothing of a base stays."""
    free, defaults = Free(question), Config()
    values = {key: value_of(defaults, key) for key in SEARCHED if not free.fixes(key)} | {LOCAL_BATCH: "auto"}
    if free.fixes(LOCAL_BATCH):
        del values[LOCAL_BATCH]
    return replace(question, config=with_values(question.config, values))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, which looks through all that is kept again and again: it holds none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _offered(offer: Offer, points: Iterable[Point], most: int) -> list[tuple[Point, Plan]]:
    """The first points that every rule lets through and whose plan fits."""
    found: list[tuple[Point, Plan]] = []
    for point in points:
        if len(found) == most:
            break
        plan = offer.plan(point.values())
        if isinstance(plan, Plan) and plan.memory.needed_bytes <= offer.most_bytes:
            found.append((point, plan))
    return found
