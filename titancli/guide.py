"""Which layout for which size and goal: a table that the planner filled, and what each strategy asks one to know.

Knows how the table (presets/guide.json) is read and looked up. Does not search: `tests/bench/bench_guide.py` writes the
table, and a test recomputes it. Does not know how it is shown (guide_text).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf, log
from typing import TYPE_CHECKING, Any

from engine.reading.nearest import nearest
from engine.strategies import STRATEGIES

if TYPE_CHECKING:
    from engine.planner.search import GoalName

_LONG_TOKENS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumb:
    """The best layout of the kind that the rule of thumb names, where the planner prefers another.

    `tokens_per_s_per_gpu` is None where it does not fit; `reason` is the planner's, with its number.
    """

    name: str
    description: str
    tokens_per_s_per_gpu: float | None
    needed_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The planner's winner of a size for a goal; `values` are the searched keys that make it."""

    goal: GoalName
    layout: str
    description: str
    tokens_per_s_per_gpu: float
    mfu_pct: float | None
    needed_bytes: int
    capacity_bytes: int
    bubble_pct: float
    strategies: tuple[str, ...]
    reason: str
    thumb: Thumb | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model on GPUs, with a cell for each goal."""

    model: str
    parameters: int
    gpu: str
    nodes: int
    gpus_per_node: int
    seq_len: int
    cells: tuple[Cell, ...]

    @property
    def gpus(self) -> int:
        """How many in all."""
        return self.nodes * self.gpus_per_node

    @property
    def is_long(self) -> bool:
        """Whether its sequences are what makes it large."""
        return self.seq_len >= _LONG_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is said of models up to a size before anybody has calculated; `kind` is what the search calls that."""

    most_parameters: float
    sizes: str
    says: str
    kind: str


# The field's habit, which the planner is compared with; the simplest kind is a prototype's at every size.
RULES: tuple[Rule, ...] = (
    Rule(
        most_parameters=10e9,
        sizes="up to 10 billion parameters",
        says="FSDP leads, with compile and float8 for speed",
        kind="FSDP alone",
    ),
    Rule(
        most_parameters=100e9,
        sizes="10 to 100 billion parameters",
        says="FSDP and tensor parallel, with async TP",
        kind="FSDP and TP",
    ),
    Rule(
        most_parameters=inf,
        sizes="more than 100 billion parameters",
        says="3D (FSDP, tensor parallel, pipeline) with an interleaved schedule and float8",
        kind="3D: FSDP, TP and PP",
    ),
)


def rule_of(parameters: int) -> Rule:
    """The rule of thumb for a model of so many parameters."""
    return next(rule for rule in RULES if parameters <= rule.most_parameters)


@cache
def guide() -> tuple[Size, ...]:
    """The table as it was written."""
    return tuple(_size(row) for row in json.loads(files("presets").joinpath("guide.json").read_text("utf-8")))


def row_for(parameters: int, goal: GoalName, *, seq_len: int = 0) -> tuple[Size, Cell]:
    """The row of the table that a model is nearest to, and its cell for a goal.

    A model belongs to the sizes that share its rule of thumb; of those with long or usual sequences, as its own are,
    the one on fewest GPUs is shown.
    """
    alike = [size for size in guide() if rule_of(size.parameters) == rule_of(parameters)]
    as_long = [size for size in alike if size.is_long == (seq_len >= _LONG_TOKENS)] or alike
    size = min(as_long, key=lambda each: each.gpus)
    return size, next(cell for cell in size.cells if cell.goal == goal)


def models() -> tuple[str, ...]:
    """The models of the table, each once."""
    return tuple(dict.fromkeys(size.model for size in guide()))


def nearest_model(word: str) -> str | None:
    """The model of the table that is nearest in name, or in size where the word is one; None where it is neither."""
    named = word.upper().rpartition("-")[2]
    if named in models():
        return named
    if not re.fullmatch(r"[1-9]\d{0,5}(\.\d+)?B", named):
        return nearest(named, models())
    return min(models(), key=lambda model: abs(log(float(named[:-1]) / float(model[:-1]))))


def guide_json(model: str | None = None) -> dict[str, Any]:
    """Table and strategies as one plain object; of the table only one model, where it is given."""
    sizes = json.loads(files("presets").joinpath("guide.json").read_text("utf-8"))
    sizes = [size for size in sizes if model in (None, size["model"])]
    strategies = [
        {"id": each.id, "name": each.name, "level": each.level, "for": each.for_, "keys": list(each.keys)}
        | {"explains": each.explains}
        for each in STRATEGIES
    ]
    return {"sizes": sizes, "strategies": strategies}


def _size(row: dict[str, Any]) -> Size:
    cells = tuple(
        Cell(**cell | {"strategies": tuple(cell["strategies"]), "thumb": cell["thumb"] and Thumb(**cell["thumb"])})
        for cell in row["cells"]
    )
    return Size(**row | {"cells": cells})
