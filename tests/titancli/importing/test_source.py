"""Files that are no good config of torchtitan: all that is wrong in one pass, each at its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from titancli.importing.source import read_source

MANY = """lr = 3
[training]
warmup-steps = 3
seq_len = "8192"
steps = true
enable_cpu_offload = true
[lr_scheduler]
decay_type = "cos"
warmup_steps = -3
[cluster]
gpu = "h200"
"""


def refusal(tmp_path: Path, text: str, name: str = "theirs.toml") -> list[tuple[str, str, int | None]]:
    """Rules, keys and lines of what is said of a text."""
    file = tmp_path / name
    file.write_text(text)
    try:
        found = read_source(str(file)).findings
    except TitanError as error:
        found = error.findings
    return [(finding.rule, finding.key, finding.line) for finding in found]


def test_c49_all_mistakes_are_told_in_one_pass_with_lines(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text(MANY)
    ran = titan("import", "theirs.toml", "--output", "run.toml")
    assert (ran.code, ran.out, (tmp_path / "run.toml").exists()) == (2, "", False)
    heads = [line.split(":")[0] for line in ran.err.splitlines() if line.startswith("error")]
    places = [line.split()[1] for line in ran.err.splitlines() if line.startswith("  --> ")]
    assert heads == [f"error[U16{digit}]" for digit in "00112110"]
    assert places == [f"theirs.toml:{line}" for line in (1, 3, 4, 5, 6, 8, 9, 11)]
    assert "  fix: write warmup_steps in [lr_scheduler]\n" in ran.err
    assert '   | seq_len = "8192"\n' in ran.err


def test_json_holds_the_mistakes_and_nothing_else_is_said(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text(MANY)
    ran = titan("import", "theirs.toml", "--json")
    told = json.loads(ran.out)
    assert (ran.code, ran.err, told["ok"], told["toml"]) == (2, "", False, None)
    assert [finding["line"] for finding in told["findings"]] == [1, 3, 4, 5, 6, 8, 9, 11]
    assert [row["key"] for row in told["refused"]] == ["training.enable_cpu_offload"]


def test_broken_toml_has_line_and_column(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text("[job\n")
    ran = titan("import", "theirs.toml")
    assert (ran.code, ran.out) == (2, "")
    assert "error[S103]: not TOML: line 1, column 5: " in ran.err


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("run.toml", '[cluster]\ngpu = "h200"\n[training]\nsteps = 3\n', "U163"),
        ("written.toml", '[cluster]\ngpu = "h200"\n[training]\nsteps = 3\n[data]\n', "U163"),
        ("pyproject.toml", '[project]\nname = "x"\n[tool.ruff]\nline-length = 1\n', "U164"),
        ("empty.toml", "# nothing\n", "U164"),
        ("megatron.yaml", "tensor_model_parallel_size: 8\n", "U164"),
        ("config_registry.py", "def llama3_8b(): ...\n", "U164"),
    ],
)
def test_another_kind_of_file_is_said_to_be_one(tmp_path: Path, name: str, text: str, rule: str) -> None:
    assert [found[0] for found in refusal(tmp_path, text, name)] == [rule]


def test_a_missing_file_is_no_preset(tmp_path: Path) -> None:
    with pytest.raises(TitanError) as missing:
        read_source(str(tmp_path / "nowhere" / "x.toml"))
    assert [(each.rule, "--preset" in each.fix) for each in missing.value.findings] == [("S104", False)]


def test_two_names_of_one_key_are_a_mistake(tmp_path: Path) -> None:
    text = "[training]\nlocal_batch_size = 1\nbatch_size = 2\n"
    assert refusal(tmp_path, text) == [("U161", "training.batch_size", 3)]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("training = 3\n", "training"),
        ("[training.steps]\nx = 1\n", "training.steps"),
        ("[model]\nconverters = 3\n", "model.converters"),
        ("[parallelism]\nmodule_fqns_per_model_part = ['a']\n", "parallelism.module_fqns_per_model_part"),
        ("[optimizer]\nlr = 99999999999999999999999\n", "optimizer.lr"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_at_its_key(tmp_path: Path, text: str, key: str) -> None:
    assert [(rule, found) for rule, found, _ in refusal(tmp_path, text)] == [("U161", key)]


def test_a_key_from_before_0_1_names_its_place_here(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[experimental]\npipeline_parallel_microbatches = 8\n")
    (finding,) = read_source(str(file)).findings
    assert (finding.rule, finding.line) == ("U160", 2)
    assert "parallelism.pipeline_parallel_microbatch_size" in finding.message
