"""A few cells of the sweep of tests/bench/bench_init.py: what init writes validates, or it says what is needed."""

from __future__ import annotations

import re

import pytest

from tests.bench.bench_init import COUNTS, KINDS, MODELS, Cell, cells, judged


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "goal"),
    [
        ("8B", "mi300x", 1, "prototype"),
        ("8B", "h200", 2, "max-performance"),
        ("8B", "gb200", 8, "prototype"),
    ],
)
def test_what_init_writes_validates(model: str, gpu: str, gpus: int, goal: str) -> None:
    found = judged(Cell(model=model, gpu=gpu, gpus=gpus, goal=goal))
    assert (found.verdict, found.said) == ("written", "")


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "goal"),
    [
        ("8B", "a100-40", 1, "production"),
        ("70B", "b200", 2, "max-performance"),
        ("405B", "h200", 1, "prototype"),
        ("405B", "cpu", 1, "prototype"),
    ],
)
def test_where_nothing_fits_init_says_how_many_would_do(model: str, gpu: str, gpus: int, goal: str) -> None:
    found = judged(Cell(model=model, gpu=gpu, gpus=gpus, goal=goal))
    assert found.verdict == "refused", found.said
    assert re.search(r"use \d+ .*--nodes \d+ --gpus-per-node \d+", found.said)


def test_the_sweep_has_every_model_kind_and_goal_on_every_number_of_gpus() -> None:
    assert len(set(cells())) == len(MODELS) * len(COUNTS) * len(KINDS) * 3
    assert "gb200" in KINDS
    assert "--nodes 2 --gpus-per-node 4" in " ".join(Cell(model="8B", gpu="gb200", gpus=8, goal="prototype").flags)
