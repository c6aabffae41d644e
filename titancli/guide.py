"""Which layout for which size and goal: a table that the planner filled, and what each strategy asks one to know.

Knows how the table (presets/guide.json) is read, looked up and shown. Does not search: `tests/bench/bench_guide.py`
writes the table, and a test recomputes it. The sentences are those of engine/strategies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import TYPE_CHECKING, Any, TextIO

from engine.strategies import STRATEGIES, Level, Strategy
from titancli import figures, report
from titancli.report import BOLD, DIM, hanging, paint, wrapped

if TYPE_CHECKING:
    from engine.planner.search import GoalName

_LONG_TOKENS = 32_768
_TABLE_WIDTH = 88
_LEVELS: dict[Level, str] = {
    "beginner": "what needs no experience",
    "advanced": "what wants to be understood first (* in the table)",
}


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
SIMPLEST_KIND, LONG_KIND = RULES[0].kind, "FSDP and CP"


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


def guide_json() -> dict[str, Any]:
    """Table and strategies as one plain object."""
    sizes = json.loads(files("presets").joinpath("guide.json").read_text("utf-8"))
    strategies = [
        {"id": each.id, "name": each.name, "level": each.level, "for": each.for_, "keys": list(each.keys)}
        | {"explains": each.explains}
        for each in STRATEGIES
    ]
    return {"sizes": sizes, "strategies": strategies}


def say_guide(stream: TextIO | None = None) -> None:
    """Writes the table, and beneath it what each strategy does and asks one to know; fits 60 columns."""
    stream = stream or sys.stdout
    width, colour = max(60, report.width_of(stream)), report.takes_colour(stream)
    lines = [
        *wrapped("which layout, by size and goal: the planner's best, and what it predicts", width, indent=2),
        *(line for size in guide() for line in ("", *_of_size(size, width, colour))),
        "",
        *wrapped(
            "predicted with what such GPUs usually sustain; for yours: titan plan --model 8B --gpu KIND --nodes N",
            width,
            indent=2,
        ),
    ]
    for level, title in _LEVELS.items():
        lines += ["", paint(title, BOLD, colour)]
        lines += [line for each in STRATEGIES if each.level == level for line in _of_strategy(each, width, colour)]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def _size(row: dict[str, Any]) -> Size:
    cells = tuple(
        Cell(**cell | {"strategies": tuple(cell["strategies"]), "thumb": cell["thumb"] and Thumb(**cell["thumb"])})
        for cell in row["cells"]
    )
    return Size(**row | {"cells": cells})


def _of_size(size: Size, width: int, colour: bool) -> Iterator[str]:
    devices = report.devices(size.gpu, size.gpus)
    yield paint(f"{size.model} on {devices}, sequences of {size.seq_len:,} tokens", BOLD, colour)
    rule = rule_of(size.parameters)
    says = rule.says + (", and context parallel for long sequences" if size.is_long else "")
    yield from hanging("  ", f"rule of thumb for {rule.sizes}: {says}; a prototype takes FSDP", width)
    if width >= _TABLE_WIDTH:
        yield paint(_row("goal", "layout", "tokens/s/GPU", "memory of a GPU", "bubble"), DIM, colour)
    for cell in size.cells:
        yield from _of_cell(cell, width, colour)


def _row(goal: str, layout: str, rate: str, memory: str, bubble: str) -> str:
    return f"  {goal:<16} {layout:<22} {rate:>12}  {memory:<24} {bubble:>6}"


def _of_cell(cell: Cell, width: int, colour: bool) -> Iterator[str]:
    rate, memory = figures.rate(cell.tokens_per_s_per_gpu), _memory(cell.needed_bytes, cell.capacity_bytes)
    bubble = figures.percent(cell.bubble_pct)
    if width >= _TABLE_WIDTH:
        yield _row(cell.goal, cell.layout, rate, memory, bubble)
    else:
        yield from hanging("  ", f"{cell.goal}: {cell.layout}", width)
        yield from hanging("    ", f"{rate} tokens/s/GPU, {memory}, bubble {bubble}", width)
    yield from hanging("    uses ", ", ".join(_marked(cell.strategies)), width)
    yield from hanging("    with ", cell.description, width)
    for text in (cell.reason, *([_against_thumb(cell.thumb)] if cell.thumb else [])):
        yield from (paint(line, DIM, colour) for line in hanging("    why  ", text, width))


def _marked(ids: Sequence[str]) -> list[str]:
    """Names of strategies; those to understand first with a star."""
    return [f"{each.name}{'*' if each.level == 'advanced' else ''}" for each in STRATEGIES if each.id in ids]


def _memory(needed_bytes: int, capacity_bytes: int) -> str:
    whole, share = figures.memory(capacity_bytes), 100 * needed_bytes / capacity_bytes
    return f"{needed_bytes / (1 << 30):.1f} of {whole} ({share:.0f} %)"


def _against_thumb(thumb: Thumb) -> str:
    """Where the planner and the rule of thumb differ, with the figures of the rule's layout."""
    start = f"not the rule of thumb, {thumb.name}: "
    if thumb.tokens_per_s_per_gpu is None:
        return start + thumb.reason
    reached = f"{figures.rate(thumb.tokens_per_s_per_gpu)} tokens/s/GPU in {figures.memory(thumb.needed_bytes)}"
    return f"{start}at its best ({thumb.description}) {reached}, {thumb.reason}"


def _of_strategy(strategy: Strategy, width: int, colour: bool) -> Iterator[str]:
    yield f"  {paint(strategy.name, BOLD, colour)}, for {strategy.for_}"
    yield from hanging("    ", strategy.explains, width)
    yield from (paint(line, DIM, colour) for line in hanging("    set  ", ", ".join(strategy.keys), width))
