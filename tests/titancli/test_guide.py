"""The decision guide: its figures are the planner's of today, its rows are found by size."""

from __future__ import annotations

import json

import pytest

from engine.keys import with_values
from engine.planner.plan import plan
from tests.bench.bench_guide import ROWS, Row, figures_of, size
from titancli import figures
from titancli.guide import Cell, Size, guide, guide_json, models, nearest_model, row_for

_STALE = "presets/guide.json is stale: python tests/bench/bench_guide.py --output presets/guide.json"
_CELLS = [(row, each, cell) for row, each in zip(ROWS, guide(), strict=True) for cell in each.cells]


def _name(value: object) -> str:
    if isinstance(value, Row):
        return f"{value.model}-{value.nodes * value.gpus_per_node}-{value.seq_len}"
    return value.goal if isinstance(value, Cell) else ""


@pytest.mark.parametrize(("row", "each", "cell"), _CELLS, ids=_name)
def test_the_figures_of_a_cell_are_what_the_planner_says_of_its_layout(row: Row, each: Size, cell: Cell) -> None:
    assert (row.model, row.nodes, row.seq_len) == (each.model, each.nodes, each.seq_len)
    kept = {name: getattr(cell, name) for name in figures_of(row.question(cell.goal), cell.values)}
    assert figures_of(row.question(cell.goal), cell.values) == kept, _STALE


@pytest.mark.parametrize("place", [0, 4], ids=["8B-8", "8B-8-long"])
def test_the_rows_of_one_node_are_what_the_search_finds(place: int) -> None:
    assert size(ROWS[place]) == guide()[place], _STALE


def test_every_goal_has_a_cell_that_fits() -> None:
    assert all([cell.goal for cell in each.cells] == ["prototype", "production", "max-performance"] for each in guide())
    assert all(cell.needed_bytes < cell.capacity_bytes for each in guide() for cell in each.cells)


@pytest.mark.parametrize(
    ("parameters", "model", "gpus"), [(10**9, "8B", 8), (32 * 10**9, "70B", 64), (10**11 + 1, "405B", 512)]
)
def test_a_model_finds_the_row_of_its_size(parameters: int, model: str, gpus: int) -> None:
    found, cell = row_for(parameters, "production")
    assert (found.model, found.gpus, found.is_long, cell.goal) == (model, gpus, False, "production")


def test_a_model_with_long_sequences_finds_the_row_of_those() -> None:
    assert row_for(8 * 10**9, "prototype", seq_len=65_536)[0].seq_len == 131_072


def test_a_size_without_a_long_row_finds_its_usual_one() -> None:
    assert row_for(70 * 10**9, "prototype", seq_len=131_072)[0].model == "70B"


def test_the_object_names_every_strategy_that_a_cell_uses() -> None:
    told = json.loads(json.dumps(guide_json()))
    known = {each["id"]: each for each in told["strategies"]}
    used = {name for each in told["sizes"] for cell in each["cells"] for name in cell["strategies"]}
    assert used <= set(known)
    assert known["fsdp"] | {"level": "beginner", "for": "memory"} == known["fsdp"]


def test_the_object_of_one_model_has_its_sizes_and_every_strategy() -> None:
    whole, one = guide_json(), guide_json("70B")
    assert [size["model"] for size in one["sizes"]] == ["70B", "70B"]
    assert one["strategies"] == whole["strategies"]


def test_every_model_of_the_guide_is_its_own_nearest() -> None:
    assert [nearest_model(model.lower()) for model in models()] == list(models())


@pytest.mark.parametrize(("row", "each", "cell"), _CELLS, ids=_name)
def test_the_rate_of_a_cell_reads_as_in_a_plan(row: Row, each: Size, cell: Cell) -> None:
    question = row.question(cell.goal)
    made = plan(with_values(question.config, cell.values), question.cluster)
    assert each.gpu == made.gpu
    assert figures.rate(cell.tokens_per_s_per_gpu) == figures.rate(made.tokens_per_s_per_gpu)
