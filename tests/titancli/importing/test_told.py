"""What a person and a program read of an import."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchtitan_recipes import RECIPES

from titancli.importing import import_file


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the 405B recipe."""
    monkeypatch.chdir(tmp_path)
    Path("llama3_405b.toml").write_text(RECIPES["llama3_405b"].text)
    return "llama3_405b.toml"


def test_without_output_stdout_is_the_config_and_stderr_the_report(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_file(recipe, {}, output=None, force=False, as_json=False) == 0
    told = capsys.readouterr()
    assert tomllib.loads(told.out)["model"] == {
        "name": "llama3",
        "flavor": "405B",
        "hf_assets_path": "./assets/hf/Llama-3.1-405B",
    }
    assert not told.out.startswith("#:schema")
    assert told.err.startswith("llama3_405b.toml: ")


def test_the_report_names_what_was_renamed_dropped_and_assumed(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    import_file(recipe, {}, output=None, force=False, as_json=False)
    said = " ".join(capsys.readouterr().err.split())
    for part in (
        "model.converters -> quantize.dense.float8.enable = true",
        "quantize.linear.float8.filter_fqns -> quantize.dense.float8.filter_fqns",
        'training.dataset: "c4" -> "stdlib": stands in for c4',
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp: it follows enable_fsdp_float8_all_gather",
        "data.shuffle = false: torchtitan reads a corpus in its own order",
        "cluster.nodes = 16, cluster.gpus_per_node = 8: a comment in line 1 says 128 H100 GPUs",
    ):
        assert part in said


def test_json_has_every_list_and_the_file(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    import_file(recipe, {"cluster.gpu": "h200"}, output="run.toml", force=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    lists = {"kept", "renamed", "changed", "dropped", "refused", "defaults", "assumed", "findings"}
    assert told.keys() == lists | {"ok", "file", "output", "toml"}
    assert (told["ok"], told["output"], told["toml"]) == (True, "run.toml", Path("run.toml").read_text())
    assert {"old": "optimizer.lr", "was": 8e-5, "new": "optimizer.lr", "value": 8e-5, "note": ""} in told["kept"]


def test_json_holds_what_json_has_no_number_for_as_toml_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.toml"
    file.write_text("[training]\nmax_norm = inf\n")
    assert import_file(str(file), {}, output=None, force=False, as_json=True) == 0
    (norm,) = json.loads(capsys.readouterr().out)["changed"]
    assert (norm["was"], norm["value"]) == ("inf", 0.0)


def test_a_layout_that_titan_refuses_is_told_with_the_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.toml"
    file.write_text('[model]\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 16\n')
    assert import_file(str(file), {}, output=None, force=False, as_json=False) == 0
    assert "titan validate says of it\n  error[P101]: " in capsys.readouterr().err


def test_a_file_that_is_there_stays(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text("[training]\nsteps = 3\n")
    (tmp_path / "run.toml").write_text("mine\n")
    ran = titan("import", "theirs.toml", "--output", "run.toml")
    assert (ran.code, (tmp_path / "run.toml").read_text()) == (2, "mine\n")
    assert "error[U124]: run.toml is there already" in ran.err
    assert titan("import", "theirs.toml", "--output", "run.toml", "--force", "--gpu", "h200").code == 0
    assert (tmp_path / "run.toml.old").read_text() == "mine\n"
    assert tomllib.loads((tmp_path / "run.toml").read_text())["cluster"]["gpu"] == "h200"


def test_lines_keep_to_60_columns(recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("titancli.report.width_of", lambda _: 60)
    import_file(recipe, {}, output=None, force=False, as_json=False)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 60
