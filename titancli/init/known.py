"""What `titan init` knows when it asks: the config so far, what somebody gave of it, this machine, and the plans.

Knows no question.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Config
from engine.hardware import Machine
from engine.planner.search import GoalName
from titancli.init.plans import Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`given` are the dotted keys that somebody gave: by a flag, an answer, the environment or a preset."""

    config: Config
    given: frozenset[str]
    machine: Machine
    goal: GoalName | None = None
    plans: Plans | None = None
