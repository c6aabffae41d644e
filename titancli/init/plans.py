"""The plans that `titan init` offers: what the search found, and beside it the layout that a preset has already.

Knows how a plan is listed and described. Does not search by itself nor ask (wizard, prompts).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import ClassVar

from engine.config import Config
from engine.keys import with_values
from engine.planner.plan import Plan
from engine.planner.search import Candidate, Found, GoalName, Question, search
from engine.planner.search.offer import Offer
from engine.rules import check
from engine.rules.layouts import refusal
from engine.sources import Loaded
from engine.strategies import Strategy, chosen
from titancli import charts, figures, report
from titancli.question import cluster_of, started
from titancli.ranking import described, say_lost, say_ranked

_MADE_FOR = ("model.", "cluster.", "training.seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """What there is to choose from: `found` by their places, and `own`, the layout of the preset, by the word `preset`.

    `prefers_own`: nobody asked for another goal, model or hardware than the preset's.
    """

    PRESET: ClassVar[str] = "preset"
    MOST: ClassVar[int] = 50
    TOP: ClassVar[int] = 5

    question: Question
    found: Found
    own: Candidate | None = None
    prefers_own: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The answers that there are."""
        places = tuple(str(place) for place in range(1, len(self.found.candidates) + 1))
        return (*places, self.PRESET) if self.own else places

    @property
    def default(self) -> str:
        """The best, or a preset's own layout."""
        return self.PRESET if self.own and self.prefers_own else "1"

    def candidate(self, word: str) -> Candidate:
        """The plan that an answer names."""
        if word == self.PRESET and self.own is not None:
            return self.own
        return self.found.candidates[int(word) - 1]

    def title(self, word: str) -> str:
        """A plan on one line: speed, memory, layout."""
        plan = self.candidate(word).plan
        rate, memory = figures.rate(plan.tokens_per_s_per_gpu), figures.memory(plan.memory.needed_bytes)
        place = f"{word:<{max(map(len, self.words))}}"
        return f"{place} {rate:>7} {report.speed_unit(plan.gpu)} {memory:>9}  {report.layout(plan)}"

    def note(self, word: str) -> str:
        """What makes a plan, how full it is, and why it stands where it does."""
        candidate = self.candidate(word)
        memory, time = candidate.plan.memory, candidate.plan.time
        bubble = None if time.bubble_s is None or not time.step_s else 100 * time.bubble_s / time.step_s
        full = f"{100 * memory.needed_bytes / memory.capacity_bytes:.0f} % of the memory"
        return f"{full}, bubble {figures.percent(bubble)}; {described(candidate)}; {candidate.reason}"

    def config(self, word: str) -> Config:
        """The config that a plan makes."""
        return with_values(Config(), self.candidate(word).values)

    def strategies(self, word: str) -> tuple[Strategy, ...]:
        """What a plan uses that wants to be understood first."""
        used = chosen(self.config(word), self.candidate(word).plan)
        return tuple(strategy for strategy in used if strategy.level == "advanced")


def plans_of(
    loaded: Loaded, goal: GoalName, *, fixed: frozenset[str], preset: str | None, asked_goal: bool, top: int
) -> Plans:
    """Searches; the layout of a preset is offered where it keeps every rule and fits."""
    question = Question(
        config=started(loaded, goal),
        cluster=cluster_of(loaded),
        goal=goal,
        fixed=fixed,
        top=top,
        is_written=preset is not None,
    )
    found = search(question, refusal=refusal)
    own = None if preset is None else _own(loaded, replace(question, config=loaded.config), found, preset)
    return Plans(question=question, found=found, own=own, prefers_own=not asked_goal and not _is_for_another(loaded))


def _is_for_another(loaded: Loaded) -> bool:
    """Whether somebody changed what a layout is made for."""
    return any(
        key.startswith(_MADE_FOR) and origin.kind not in ("default", "preset") for key, origin in loaded.origins.items()
    )


def _own(loaded: Loaded, question: Question, found: Found, preset: str) -> Candidate | None:
    offer = Offer(question, refusal)
    plan = offer.plan({})
    if not isinstance(plan, Plan) or not check(loaded).ok:
        return None
    against = next((other.reason for other in found.rejected if other.name.startswith("as written")), "")
    is_best = bool(found.candidates) and found.candidates[0].plan == plan
    reason = f"as {preset} has it: " + ("the best that was found" if is_best else against)
    return Candidate(values=offer.keys({}), plan=plan, reason=reason)


def say_plans(plans: Plans) -> None:
    """The ranked plans, a memory bar of each, and why others lost."""
    report.say("")
    say_ranked(plans.question, plans.found)
    report.say("\nmemory of the fullest rank")
    charts.say_side_by_side([(word, plans.candidate(word).plan) for word in plans.words])
    say_lost(plans.found)
    report.say("")


def say_strategies(plans: Plans, word: str) -> None:
    """Two sentences about each strategy of a plan that wants to be understood first."""
    strategies, width = plans.strategies(word), report.width_of(sys.stdout)
    if strategies:
        report.say("\nworth knowing about this plan")
    for strategy in strategies:
        for line in report.wrapped(f"  {strategy.name}: {strategy.explains}", width, indent=4):
            report.say(line)
