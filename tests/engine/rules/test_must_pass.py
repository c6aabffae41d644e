"""Configs that people write and that are right: beside the rows that must fail, those that must pass."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from engine.config import Config, Float8, Parallelism, ScheduleName
from engine.hardware import Machine
from engine.keys import field_types
from engine.rules import check
from engine.sources import load, to_toml

FILES = sorted(Path(__file__).with_name("must_pass").glob("*.toml"))
SHAPE_NUMBERS = {key.rpartition(".")[2] for key in field_types() if key.startswith("model.shape.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_c52_a_config_that_is_right_passes_and_fits(path: Path) -> None:
    report = check(load(path, environ={}))
    assert report.findings == ()
    assert report.plan is not None
    assert report.plan.memory.fits is not False
    assert [setting.key for setting in report.settings if setting.state == "rejected"] == []


def test_c52_every_line_of_a_config_that_says_all_can_be_left_out(
    base: Config, no_gpu: Machine, tmp_path: Path
) -> None:
    assert no_gpu.kind == "cpu"
    lines = to_toml(base).splitlines()
    path = tmp_path / "run.toml"
    refused: dict[str, object] = {}
    for number, line in enumerate(lines):
        # The numbers of the model stand for each other: without one of them it is another model.
        if " = " in line and line.split(" = ")[0] not in SHAPE_NUMBERS:
            path.write_text("\n".join(lines[:number] + lines[number + 1 :]), "utf-8")
            findings = check(load(path, environ={})).findings
            refused |= {line: findings} if findings else {}
    assert refused == {}


def test_every_file_says_what_it_is_about() -> None:
    assert [path.stem for path in FILES if not path.read_text("utf-8").startswith("# ")] == []


def written(key: str) -> set[object]:
    """All values that the files write for a key."""
    section, _, name = key.rpartition(".")
    found = set()
    for path in FILES:
        table = tomllib.loads(path.read_text("utf-8"))
        for part in section.split("."):
            table = table.get(part, {})
        found |= {table[name]} if name in table else set()
    return found


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("parallelism.pipeline_parallel_schedule", get_args(ScheduleName)),
        (
            "parallelism.context_parallel_method",
            get_args(Parallelism.model_fields["context_parallel_method"].annotation),
        ),
        ("activation_checkpoint.mode", ("selective", "full", "memory_budget", "auto")),
        ("quantize.dense.float8.recipe_name", get_args(Float8.model_fields["recipe_name"].annotation)),
        ("optimizer.name", ("SGD", "Adam")),
        ("model.name", ("llama2", "llama3", "qwen3")),
    ],
)
def test_every_choice_passes_somewhere(key: str, choices: tuple[str, ...]) -> None:
    assert set(choices) <= written(key)
