"""The decision guide: what the planner finds for each size and goal, beside the layout of the rule of thumb.

`python tests/bench/bench_guide.py` prints the table and says whether presets/guide.json is still what the planner
finds (exit 1 where it is not); `--output presets/guide.json` writes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.keys import with_values
from engine.planner.plan import plan
from engine.planner.search import GOALS, SEARCHED, Alternative, Candidate, Found, GoalName, Question, axes, search
from engine.planner.search.layouts import kind_of
from engine.rules.layouts import refusal
from engine.sources import Flag
from engine.strategies import chosen
from titancli.guide import RULES, Cell, Size, Thumb, rule_of
from titancli.question import Asked, question_of
from titancli.ranking import described

GPU = "h100-80"
_KINDS = {
    frozenset(): "FSDP alone",
    frozenset({"tp"}): "FSDP and TP",
    frozenset({"tp", "pp"}): "3D: FSDP, TP and PP",
    frozenset({"cp"}): "FSDP and CP",
}
# As many as are the same on every machine: of a figure that is rounded twice, `titan plan` would show another.
_DIGITS = 6
# What a measurement on the machine at hand would change has no place in a table that everybody reads.
_UNCALIBRATED = Flag("cluster.calibration", "none", "--cluster.calibration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model on GPUs that the guide has a row for."""

    model: str
    nodes: int
    seq_len: int = 8192
    gpus_per_node: int = 8

    def question(self, goal: GoalName) -> Question:
        """What the search is asked."""
        asked = Asked(
            model=self.model,
            gpu=GPU,
            nodes=str(self.nodes),
            gpus_per_node=str(self.gpus_per_node),
            seq_len=str(self.seq_len),
            goal=goal,
        )
        return question_of(None, None, [_UNCALIBRATED], asked)


ROWS = (
    Row(model="8B", nodes=1),
    Row(model="70B", nodes=8),
    Row(model="70B", nodes=32),
    Row(model="405B", nodes=64),
    Row(model="8B", nodes=1, seq_len=131_072),
    Row(model="8B", nodes=8, seq_len=131_072),
)


def size(row: Row) -> Size:
    """A row of the guide: one search for each goal."""
    cells = tuple(cell(row, goal) for goal in GOALS)
    return Size(
        model=row.model,
        parameters=plan(row.question("production").config).parameters,
        gpu=GPU,
        nodes=row.nodes,
        gpus_per_node=row.gpus_per_node,
        seq_len=row.seq_len,
        cells=cells,
    )


def cell(row: Row, goal: GoalName) -> Cell:
    """The winner of one search, and how the layout of the rule of thumb stands beside it."""
    question = row.question(goal)
    found = search(question, refusal=refusal)
    winner = found.candidates[0]
    values = {key: value for key, value in winner.values.items() if key in SEARCHED}
    return Cell(
        goal=goal,
        layout=axes(winner.plan.mesh),
        description=described(winner),
        **figures_of(question, winner.values),
        reason=winner.reason,
        thumb=thumb(question, found),
        values=values,
    )


def figures_of(question: Question, values: dict[str, Any]) -> dict[str, Any]:
    """What the planner says of a layout, rounded so that it is the same on every machine."""
    config = with_values(question.config, values)
    made = plan(config, question.cluster)
    assert made.tokens_per_s_per_gpu is not None, "the rates of the guide's GPU are known"
    assert made.time.step_s is not None
    return {
        "tokens_per_s_per_gpu": round(made.tokens_per_s_per_gpu, _DIGITS),
        "mfu_pct": None if made.mfu_pct is None else round(made.mfu_pct, 1),
        "needed_bytes": made.memory.needed_bytes,
        "capacity_bytes": made.memory.capacity_bytes,
        "bubble_pct": round(100 * (made.time.bubble_s or 0.0) / made.time.step_s, 1),
        "strategies": tuple(strategy.id for strategy in chosen(config, made)),
    }


def thumb(question: Question, found: Found) -> Thumb | None:
    """The best of the kind that the rule of thumb names; None where the planner's winner is of that kind."""
    winner = found.candidates[0]
    kind = _kind(question, winner)
    if _KINDS.get(kind_of(winner.plan.mesh)) == kind:
        return None
    other = next((each for each in found.rejected if each.name.startswith(kind)), None)
    assert other is not None, f"the search says what became of {kind}"
    return _thumb(question, other)


def _kind(question: Question, winner: Candidate) -> str:
    """The kind that the rule of thumb names for a size and a goal."""
    simplest, rule = RULES[0], rule_of(winner.plan.parameters)
    if question.goal == "prototype":
        return simplest.kind
    return "FSDP and CP" if question.config.training.seq_len >= 32_768 and rule == simplest else rule.kind


def _thumb(question: Question, other: Alternative) -> Thumb:
    made = plan(with_values(question.config, other.values), question.cluster)
    fits = made.memory.needed_bytes <= made.memory.capacity_bytes
    assert made.tokens_per_s_per_gpu is not None, "the rates of the guide's GPU are known"
    return Thumb(
        name=other.name,
        description=described(Candidate(values=other.values, plan=made, reason=other.reason)),
        tokens_per_s_per_gpu=round(made.tokens_per_s_per_gpu, _DIGITS) if fits else None,
        needed_bytes=made.memory.needed_bytes if fits else None,
        reason=other.reason,
    )


def text(sizes: list[Size]) -> str:
    """The table as it is kept."""
    return json.dumps([asdict(each) for each in sizes], indent=1) + "\n"


def main() -> int:
    """Prints the cells; 1 where the file that is kept says something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    sizes = [size(row) for row in ROWS]
    for each in sizes:
        for one in each.cells:
            name = f"{each.model} on {each.nodes * each.gpus_per_node}, {each.seq_len:,} tokens, {one.goal}"
            print(f"{name:44} {one.layout:22} {one.tokens_per_s_per_gpu:9,.1f} tokens/s/GPU")
            if one.thumb is not None:
                print(f"    rule of thumb: {one.thumb.name}: {one.thumb.reason}")
    if asked.output is not None:
        asked.output.write_text(text(sizes), "utf-8")
        return 0
    is_stale = files("presets").joinpath("guide.json").read_text("utf-8") != text(sizes)
    print(
        "presets/guide.json is stale: write it anew with --output" if is_stale else "presets/guide.json is up to date"
    )
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
