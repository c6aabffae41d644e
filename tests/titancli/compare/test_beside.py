"""Runs beside each other, at the tokens and the seconds that all have come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from titancli.compare.beside import beside
from titancli.compare.exports import to_csv, to_json
from titancli.compare.reading import read_run

MakeRun = Callable[..., Path]


def test_losses_are_held_against_each_other_where_the_shortest_run_ends(make_run: MakeRun) -> None:
    long = make_run("long", [10.0, 9.0, 8.0, 7.0, 6.0], tokens=100, step_s=1.0)
    short = make_run("short", [10.0, 8.0], tokens=150, step_s=2.5)
    compared = beside([read_run(long), read_run(short)])
    assert (compared.tokens, compared.seconds) == (300, 5)
    assert [row.loss_at_tokens for row in compared.rows] == [8.0, 8.0]
    assert [row.loss_at_seconds for row in compared.rows] == [6.0, 8.0]
    assert compared.ends_at(300, "tokens") == (compared.rows[1],)


def test_run_without_a_step_holds_nobody_back(make_run: MakeRun) -> None:
    runs = [make_run("a", [3.0, 2.0]), make_run("b", [], ended={})]
    compared = beside([read_run(run) for run in runs])
    assert [row.loss_at_tokens for row in compared.rows] == [2.0, None]
    assert [row.name for row in compared.begun] == ["a"]


def test_marks_of_neighbours_are_drawn_together(make_run: MakeRun) -> None:
    compared = beside([read_run(make_run(name, [1.0])) for name in "pqrstu"])
    rows = compared.rows
    assert compared.marks_of([*rows[:3], rows[4], rows[5]]) == "A-C, E, F"


def test_tokens_a_step_are_known_where_all_runs_have_the_same(make_run: MakeRun) -> None:
    same = [make_run("a", [1.0, 1.0]), make_run("b", [1.0, 1.0])]
    other = make_run("c", [1.0], tokens=7)
    assert beside([read_run(run) for run in same]).tokens_a_step == 1024
    assert beside([read_run(run) for run in (*same, other)]).tokens_a_step is None


def test_json_holds_figures_and_their_ratios_to_the_first(make_run: MakeRun) -> None:
    runs = [make_run("a", [4.0, 2.0], gpu="h200"), make_run("b", [4.0, 3.0], gpu="h200", step_s=1.0)]
    told = to_json(beside([read_run(run) for run in runs]))
    assert told["reference"] == "a"
    second = told["runs"][1]
    assert (second["name"], second["state"], second["loss"], second["steps"]) == ("b", "finished", 3.0, 2)
    assert second["ratios"]["loss"] == 1.5
    assert second["ratios"]["tokens_per_s_per_gpu"] == pytest.approx(2.0)
    assert second["memory"]["of_plan"] == pytest.approx(1.2)


def test_csv_has_a_line_for_each_logged_step(make_run: MakeRun) -> None:
    runs = [make_run("a", [4.0, None]), make_run("b", [3.0])]
    assert to_csv(beside([read_run(run) for run in runs])) == (
        "run,step,tokens,seconds,loss\na,1,1024,2,4.0\na,2,2048,4,\nb,1,1024,2,3.0\n"
    )
