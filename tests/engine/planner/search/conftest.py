"""Questions that tests of the search share: Llama 3 8B on a node, and what they found."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.search import Found, GoalName, Question, search
from engine.rules.layouts import refusal

BASE: dict[str, Any] = {
    "cluster.gpu": "h100-80",
    "cluster.nodes": 1,
    "cluster.gpus_per_node": 8,
    "model.flavor": "8B",
    "training.seq_len": 8192,
}

Ask = Callable[..., Question]


def asked(goal: GoalName = "production", fixed: dict[str, Any] | None = None, **config: Any) -> Question:
    """A question about 8B on 8 H100; `fixed` keys stay, `config` changes what is asked about (`__` for a dot)."""
    edits = {key.replace("__", "."): value for key, value in config.items()}
    whole = with_values(Config(), BASE | edits | (fixed or {}))
    return Question(config=whole, cluster=resolve_cluster(whole.cluster), goal=goal, fixed=frozenset(fixed or {}))


@pytest.fixture
def ask() -> Ask:
    """`ask("prototype", fixed={...}, model__flavor="70B")` makes a question."""
    return asked


@cache
def _found(goal: GoalName) -> Found:
    return search(asked(goal), refusal=refusal)


@pytest.fixture
def found() -> Callable[[GoalName], Found]:
    """`found("production")`: the answer for 8B on 8 H100, searched once."""
    return _found
