"""Every recipe of torchtitan 0.2 for Llama 3 and Qwen 3: its import validates, and is the same run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchtitan_recipes import RECIPES, Recipe

from engine.lr import learning_rate
from engine.rules import check
from engine.sources import Loaded, load
from titancli.importing import import_file

NAMES = pytest.mark.parametrize("name", RECIPES)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A recipe by name as it is loaded from the file that the import writes."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> Loaded:
        Path(f"{name}.toml").write_text(RECIPES[name].text)
        code = import_file(f"{name}.toml", {}, output="run.toml", force=True, as_json=False)
        assert (code, capsys.readouterr().err) == (0, "")
        return load("run.toml", environ={})

    return run


def theirs(recipe: Recipe, step: int) -> float:
    """torchtitan's rate of a step, from its description: warmup, then stable, then decay to one step after the last."""
    keys = recipe.keys
    steps, warmup = keys["training.steps"], keys["lr_scheduler.warmup_steps"]
    ratio = keys.get("lr_scheduler.decay_ratio")
    decay = steps - warmup if ratio is None else round(steps * ratio)
    stable, at = steps + 1 - warmup - decay, step - 1
    if at < warmup:
        return float(keys["optimizer.lr"]) * (at + 1) / warmup
    if at < warmup + stable:
        return float(keys["optimizer.lr"])
    return float(keys["optimizer.lr"]) * (1 - (at + 1 - warmup - stable) / decay)


@NAMES
def test_a_recipe_validates_without_findings(name: str, imported: Callable[[str], Loaded]) -> None:
    assert check(imported(name)).findings == ()


@NAMES
def test_a_recipe_keeps_gpus_mesh_tokens_and_parameters(name: str, imported: Callable[[str], Loaded]) -> None:
    recipe, plan = RECIPES[name], check(imported(name)).plan
    assert plan is not None
    found = plan.to_json()
    assert {key: found[key] for key in ("world_size", "mesh", "tokens_per_step", "parameters")} == {
        "world_size": recipe.gpus,
        "mesh": recipe.mesh,
        "tokens_per_step": recipe.tokens_per_step,
        "parameters": recipe.parameters,
    }


@NAMES
def test_a_recipe_keeps_its_learning_rate(name: str, imported: Callable[[str], Loaded]) -> None:
    recipe, config = RECIPES[name], imported(name).config
    steps, warmup = recipe.keys["training.steps"], recipe.keys["lr_scheduler.warmup_steps"]
    for step in (1, warmup, warmup + 1, (warmup + steps) // 2, steps - 1, steps):
        assert math.isclose(learning_rate(config, step), theirs(recipe, step), rel_tol=1e-12)


@NAMES
def test_every_key_of_a_recipe_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPES[name].text)
    import_file(str(file), {}, output=None, force=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    taken = {row["old"] for what in ("kept", "renamed", "changed") for row in told[what]}
    dropped = {row["key"] for row in told["dropped"]}
    assert (taken | dropped, taken & dropped, told["refused"]) == (set(RECIPES[name].keys), set(), [])


def test_precision_and_compilation_of_405b_are_taken_over(imported: Callable[[str], Loaded]) -> None:
    config = imported("llama3_405b").config
    float8 = config.quantize.dense.float8
    assert (float8.enable, float8.enable_fsdp_float8_all_gather, float8.recipe_name) == (True, True, "tensorwise")
    assert (float8.filter_fqns, config.compile.enable) == (("output",), True)
    assert (config.activation_checkpoint.mode, config.parallelism.enable_async_tensor_parallel) == ("full", True)


def test_the_file_is_as_titan_validate_takes_it(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "llama3_8b.toml").write_text(RECIPES["llama3_8b"].text)
    ran = titan("import", "llama3_8b.toml", "--output", "run.toml")
    assert (ran.code, ran.err) == (0, "")
    assert "next: titan validate run.toml" in ran.out
    assert (tmp_path / "run.toml").read_text().startswith("#:schema ./titan.schema.json\n")
    assert titan("validate", "run.toml").code == 0


@pytest.mark.parametrize("flavor", ["debugmodel_moe", "30B-A3B", "235B-A22B"])
def test_experts_are_refused_by_name(flavor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "moe.toml"
    file.write_text(f'[model]\nname = "qwen3"\nflavor = "{flavor}"\n[parallelism]\nexpert_parallel_degree = 2\n')
    assert import_file(str(file), {}, output=None, force=False, as_json=True) == 2
    told = json.loads(capsys.readouterr().out)
    assert [(row["key"], "has experts" in row["reason"]) for row in told["refused"]] == [("model.flavor", True)]
