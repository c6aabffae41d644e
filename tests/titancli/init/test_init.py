"""`titan init` from outside, where nobody can be asked (C51)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from engine.rules import check
from engine.sources import Flag, load
from titancli.init import Answers, init

FLAGS = ("--model", "debugmodel", "--gpu", "cpu", "--gpus-per-node", "2", "--seq-len", "128", "--goal", "prototype")
SMALL = Answers(model="debugmodel", gpu="cpu", gpus_per_node="2", seq_len="128", goal="prototype")
OWN_TEXT = {"dataset": "jsonl", "dataset_path": "data.jsonl"}

YES: Any = {"output": "run.toml", "force": False, "yes": True}


def made(answers: Answers = SMALL, *flags: Flag, preset: str | None = None, **options: Any) -> Path:
    """The file that `--yes` writes, in the folder that the test is in."""
    chosen = YES | options
    assert init(preset, flags, answers, **chosen) == 0
    return Path(chosen["output"])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_c51_without_a_terminal_and_flags_it_lists_those_that_are_needed(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    ran = titan("init")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == (
        "error[U130]: titan init has no terminal to ask on, and these are not given: "
        "--model, --gpu, --nodes, --gpus-per-node, --seq-len, --goal"
    )
    assert "titan init --model 'llama3 8B' --gpu " in ran.err
    assert list(tmp_path.iterdir()) == []


def test_c51_only_the_flags_that_are_missing_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TitanError) as refused:
        init(None, (), Answers(model="8B", gpu="h200", seq_len="8192"), output=None, force=False, yes=False)
    assert refused.value.exit_code == 2
    finding = refused.value.findings[0]
    assert finding.message.endswith(": --nodes, --gpus-per-node, --goal")
    assert (
        "titan init --model 8B --gpu h200 --seq-len 8192 --nodes 1 --gpus-per-node 8 --goal production" in finding.fix
    )
    assert capsys.readouterr().out == ""


def test_a_text_that_nobody_chose_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    made()
    assert "trains on the Python standard library's own source until" in capsys.readouterr().out
    flags = [Flag(f"training.{key}", word, f"--training.{key}") for key, word in OWN_TEXT.items()]
    made(SMALL, *flags, output="own.toml")
    assert "standard library" not in capsys.readouterr().out


def test_of_what_went_into_a_pipe_no_command_is_next(capsys: pytest.CaptureFixture[str]) -> None:
    made(output=os.devnull)
    assert "next: " not in capsys.readouterr().out


def test_c51_with_all_answers_as_flags_a_file_is_written_that_validates(titan: Callable[..., Any]) -> None:
    ran = titan("init", *FLAGS, "--output", "run.toml")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.rstrip().endswith("next: titan validate run.toml, then titan launch run.toml")
    assert titan("validate", "run.toml").code == 0


def test_c51_a_file_that_is_there_stays_as_it_is(titan: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("mine")
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    ran = titan("init", *FLAGS, "--yes", "--output", "run.toml")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error[U124]: run.toml is there already")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before


def test_c51_force_replaces_it_and_says_where_the_old_text_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text("mine")
    made(force=True)
    assert "kept: what was there before, in run.toml.old" in capsys.readouterr().out
    assert Path("run.toml.old").read_text("utf-8") == "mine"


def test_c51_the_file_that_a_name_is_made_for_stays_too() -> None:
    path = "llama3-debugmodel-2xcpu-prototype.toml"
    assert init(None, (), SMALL, output=None, force=False, yes=True) == 0
    before = Path(path).read_bytes()
    with pytest.raises(TitanError, match="U124"):
        init(None, (), SMALL, output=None, force=False, yes=True)
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(
    ("output", "words"), [("nowhere/run.toml", "there is no folder"), (".", "that is a folder"), ("", "no name")]
)
def test_a_place_that_takes_no_file_is_told_before_anything_else(output: str, words: str) -> None:
    with pytest.raises(TitanError, match="U125") as refused:
        init(None, (), Answers(model="9B"), output=output, force=False, yes=True)
    assert words in refused.value.findings[0].message


def test_the_file_is_written_although_nobody_reads_on(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [*titan_command, "init", "--model", "debugmodel", "--gpu", "cpu", "--yes", "--output", "run.toml"]
    done = subprocess.run(words, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert done.stderr == b""
    assert check(load(tmp_path / "run.toml", environ={})).ok


def test_what_was_taken_is_told_beside_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TitanError, match="M510"):
        init(None, (), Answers(model="70B", gpu="h100-80", nodes="1", goal="prototype"), **YES)
    assert "--gpus-per-node 8: a usual node of h100-80 has so many" in capsys.readouterr().out


def test_a_terminal_that_cannot_move_its_cursor_is_none(titan: Callable[..., Any]) -> None:
    assert titan("init", TERM="dumb").code == 2


def test_what_does_not_fit_exits_3_with_what_would_be_needed() -> None:
    answers = Answers(model="70B", gpu="h100-80", nodes="1", gpus_per_node="2", seq_len="2048", goal="prototype")
    with pytest.raises(TitanError) as refused:
        init(None, (), answers, output="run.toml", force=False, yes=True)
    assert refused.value.exit_code == 3
    assert "--nodes 2 --gpus-per-node 8" in refused.value.findings[0].fix
    assert not Path("run.toml").exists()


def test_keys_given_as_flags_stand_in_the_file_even_with_their_defaults() -> None:
    flags = (Flag("training.steps", "500", "--training.steps"), Flag("optimizer.beta2", "0.95", "--optimizer.beta2"))
    written = tomllib.loads(made(SMALL, *flags).read_text("utf-8"))
    assert (written["training"]["steps"], written["optimizer"]["beta2"]) == (500, 0.95)


def test_hardware_is_written_as_it_was_resolved() -> None:
    cluster = tomllib.loads(made().read_text("utf-8"))["cluster"]
    assert cluster == {"gpu": "cpu", "nodes": 1, "gpus_per_node": 2}


def test_auto_stays_where_somebody_asked_for_it() -> None:
    answers = Answers(model="debugmodel", gpu="auto", gpus_per_node="auto", seq_len="128")
    cluster = tomllib.loads(made(answers).read_text("utf-8"))["cluster"]
    assert (cluster["gpu"], cluster["gpus_per_node"]) == ("auto", "auto")


@pytest.mark.parametrize("choice", ["1", "2"])
def test_the_chosen_plan_is_the_one_that_is_written(choice: str) -> None:
    path = made(replace(SMALL, choice=choice))
    report = check(load(path, environ={}))
    assert report.ok
    assert report.plan is not None
    assert (report.plan.mesh.dp_shard == 2) == (choice == "1")


def test_a_preset_is_written_as_it_is() -> None:
    path = made(Answers(), preset="quickstart")
    assert load(path, environ={}).config == load(preset="quickstart", environ={}).config


def test_a_goal_that_is_given_searches_the_layout_of_a_preset_anew(capsys: pytest.CaptureFixture[str]) -> None:
    made(Answers(goal="prototype"), preset="quickstart")
    assert "--choice 1" in capsys.readouterr().out


def test_a_default_that_breaks_a_rule_is_mended() -> None:
    answers = Answers(model="8B", gpu="h100-80", nodes="1", gpus_per_node="6", goal="prototype")
    flags = (Flag("parallelism.context_parallel_degree", "3", "--parallelism.context_parallel_degree"),)
    config = load(made(answers, *flags), environ={}).config
    # 8,192 tokens do not split into 2 x 3 pieces.
    assert config.training.seq_len % 6 == 0


def test_a_flag_that_breaks_a_rule_is_an_error() -> None:
    flags = (Flag("parallelism.tensor_parallel_degree", "3", "--parallelism.tensor_parallel_degree"),)
    with pytest.raises(TitanError, match="P101"):
        made(SMALL, *flags)


@pytest.mark.parametrize("goal", ["prototype", "production", "max-performance"])
@pytest.mark.parametrize(
    ("gpu", "gpus_per_node"), [("h100-80", "8"), ("a100-40", "8"), ("gb200", "4"), ("mi300x", "1")]
)
def test_what_is_written_for_an_8b_validates(goal: str, gpu: str, gpus_per_node: str) -> None:
    answers = Answers(model="8B", gpu=gpu, nodes="1", gpus_per_node=gpus_per_node, seq_len="4096", goal=goal)
    assert check(load(made(answers), environ={})).findings == ()
