"""What is asked of the search, and what it answers.

Knows the three goals and what each allows. Does not know layouts (layouts) or how they are judged (evaluate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.config import Config
from engine.hardware import Cluster
from engine.planner.held import GPU_ROOM
from engine.planner.plan import Plan

GoalName: TypeAlias = Literal["prototype", "production", "max-performance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a person wants of a layout.

    `room` is the share of the memory that it may fill, `bold` whether float8, async TP and schedules that few have
    run are tried at all, `compiles` whether torch.compile is. Each of these that a layout uses has to make it faster
    by the factor `trust`. `is_simplest`: what a person has to know counts before speed.
    """

    name: GoalName
    room: float
    compiles: bool
    bold: bool
    trust: float
    is_simplest: bool = False


GOALS: dict[GoalName, Goal] = {
    goal.name: goal
    for goal in (
        # Room for a longer sequence, a profiler or one more metric: things that a prototype is made to try.
        Goal(name="prototype", room=0.80, compiles=False, bold=False, trust=1.0, is_simplest=True),
        # The plan errs by a few percent, fragmentation grows over weeks, and validation comes on top. What few have run
        # has to win by more than the planner errs on published runs: 7 to 8 % (tests/bench/planner.json).
        Goal(name="production", room=0.86, compiles=True, bold=True, trust=1.08),
        Goal(name="max-performance", room=GPU_ROOM, compiles=True, bold=True, trust=1.0),
    )
}

Refusal: TypeAlias = Callable[[Config, Cluster], str | None]
"""The first rule that refuses a config, in words; None where all let it through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model on GPUs for a goal.

    `config` has all that is not searched; of the keys that are, `fixed` names those that stay as they stand there.
    `is_written`: the config is a layout itself, which the winner is compared with.
    """

    config: Config
    cluster: Cluster
    goal: GoalName = "production"
    fixed: frozenset[str] = frozenset()
    top: int = 5
    is_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout that is offered: the dotted keys that make it, its plan, and why it stands where it does."""

    values: dict[str, Any]
    plan: Plan
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A layout that people would think of, and why it lost; `values` are those of its best form, where it has one."""

    name: str
    values: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer, best first.

    `pareto`: no other layout is both faster and smaller. `searched` counts the ways to run a layout that were judged:
    by a bound of their speed where that rules them out, else by memory, and where they fit by time. Where nothing
    fits, `least_bytes` is the memory of the smallest layout; None where the rules leave none, and `refused` is what
    they say.
    """

    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    rejected: tuple[Alternative, ...]
    refused: tuple[str, ...]
    least_bytes: int | None
    searched: int
    seconds: float
