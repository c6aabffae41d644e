"""`titan plan` from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from engine.keys import field_types
from engine.planner.search import search
from engine.rules import check
from engine.rules.layouts import refusal
from engine.schema import schema_text
from engine.sources import Flag, load
from titancli import plan as of_plan
from titancli import report
from titancli.config_file import config_text
from titancli.plan import plan, to_json
from titancli.question import Asked, question_of

SMALL = ("plan", "--model", "8B", "--gpu", "h100-80", "--nodes", "1", "--gpus-per-node", "2", "--seq-len", "4096")


def test_it_prints_ranks_bars_front_and_reasons(titan: Callable[..., Any]) -> None:
    ran = titan(*SMALL)
    assert (ran.code, ran.err) == (0, "")
    for words in ("layouts judged in", "  1  ", "memory of one rank", "time of one step", "why others lost"):
        assert words in ran.out
    assert ran.out.rstrip().endswith(f"next: titan {' '.join(SMALL)} --output run.toml")


def test_what_it_writes_is_a_config_that_validates(titan: Callable[..., Any], tmp_path: Path) -> None:
    assert titan(*SMALL, "--output", "run.toml").code == 0
    assert titan("validate", "run.toml").code == 0
    assert (tmp_path / "titan.schema.json").read_text("utf-8") == schema_text()
    again = titan(*SMALL, "--output", "run.toml")
    assert (again.code, again.err.splitlines()[0]) == (2, "error[U124]: run.toml is there already")


def test_json_is_that_of_the_contract(titan: Callable[..., Any]) -> None:
    ran = titan(*SMALL, "--json", "--top", "2")
    told = json.loads(ran.out)
    assert ran.err == ""
    assert {"candidates", "rejected", "searched", "seconds"} <= told.keys()
    assert [each.keys() >= {"config", "plan", "reason"} for each in told["candidates"]] == [True, True]
    assert all({"config", "reason"} <= each.keys() for each in told["rejected"])
    assert all(set(each["config"]) <= set(field_types()) for each in told["candidates"])


def test_all_bad_flags_are_told_at_once(titan: Callable[..., Any]) -> None:
    ran = titan(
        "plan", "--model", "9B", "--gpu", "h100", "--nodes", "0", "--goal", "prod", "--seq-len", "x", "--top", "0"
    )
    assert (ran.code, ran.out) == (2, "")
    assert [line[:12] for line in ran.err.splitlines() if line.startswith("error")] == [
        "error[U121]:",
        "error[U122]:",
        "error[U123]:",
        "error[S102]:",
        "error[S102]:",
        "error[S102]:",
    ]
    assert "fix: write production" in ran.err
    assert "fix: write h100-80" in ran.err


def test_a_model_that_fits_nowhere_says_how_many_gpus_it_takes(titan: Callable[..., Any]) -> None:
    ran = titan(*SMALL[:1], "--model", "70B", *SMALL[3:])
    assert ran.code == 3
    assert ran.err.startswith("error[M510]: llama3 70B fits 2 x h100-80 in no layout: the smallest needs ")
    assert "fix: use 16 GPUs of this kind (--nodes 2 --gpus-per-node 8)" in ran.err


def test_every_candidate_written_as_a_file_is_sound(tmp_path: Path) -> None:
    question = question_of(None, None, (), Asked(model="8B", gpu="h100-80", nodes="1", gpus_per_node="4"))
    for number, candidate in enumerate(search(question, refusal=refusal).candidates):
        path = tmp_path / f"{number}.toml"
        path.write_text(config_text(question, candidate, schema=None), "utf-8")
        assert tomllib.loads(path.read_text("utf-8"))["model"]["flavor"] == "8B"
        checked = check(load(path, environ={}))
        assert checked.ok
        assert checked.plan == candidate.plan


def test_a_cpu_without_measured_speed_gets_the_plainest_layout() -> None:
    asked = Asked(model="debugmodel", gpu="cpu", gpus_per_node="2", seq_len="128", goal="prototype")
    found = search(question_of(None, None, (), asked), refusal=refusal)
    assert to_json(found)["candidates"][0]["plan"]["mesh"]["dp_shard"] == 2


def test_where_rules_refuse_all_layouts_they_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (Flag("parallelism.tensor_parallel_degree", "3", "--parallelism.tensor_parallel_degree"),)
    asked = Asked(model="8B", gpu="h100-80", nodes="3", gpus_per_node="8")
    with pytest.raises(TitanError) as refused:
        plan(None, None, flags, asked, output=None, force=False, as_json=False)
    assert refused.value.exit_code == 2
    assert refused.value.findings[0].rule == "P101"
    assert capsys.readouterr().out == ""


def test_more_of_a_cpu_is_more_machines() -> None:
    flags = (Flag("cluster.memory_gib", "12", "--cluster.memory_gib"),)
    asked = Asked(model="8B", gpu="cpu", gpus_per_node="2", goal="prototype")
    with pytest.raises(TitanError) as refused:
        plan(None, None, flags, asked, output=None, force=False, as_json=False)
    assert "machines like this one (--nodes " in refused.value.findings[0].fix
    assert "GPUs" not in refused.value.findings[0].fix


def test_a_model_that_fits_in_16_bits_only_is_offered_so() -> None:
    asked = Asked(model="8B", gpu="h100-80", nodes="1", gpus_per_node="1")
    with pytest.raises(TitanError) as refused:
        plan(None, None, (), asked, output=None, force=False, as_json=False)
    assert "--training.dtype bfloat16" in refused.value.findings[0].fix


def test_a_file_that_is_there_is_told_before_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("mine")
    asked = Asked(model="8B", gpu="h100-80")
    with pytest.raises(TitanError) as refused:
        plan(None, None, (), asked, output=str(file), force=False, as_json=True)
    assert refused.value.findings[0].rule == "U124"
    assert (file.read_text(), capsys.readouterr().out) == ("mine", "")


def test_the_answer_fits_60_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in (("COLUMNS", "60"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    asked = Asked(model="70B", gpu="h100-80", nodes="8", gpus_per_node="8", seq_len="8192")
    assert plan(None, None, (), asked, output=None, force=False, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    # The command that comes next is one line, to be copied.
    assert [line for line in lines if len(line) > 60 and not line.startswith("next: ")] == []


def test_what_is_left_out_is_taken_as_init_proposes_and_said_first(titan: Callable[..., Any]) -> None:
    ran = titan("plan", "--model", "8B", "--gpu", "h100-80", "--gpus-per-node", "2")
    assert " ".join(ran.out.split()).startswith(
        "llama3 8B on 4 x h100-80, sequences of 8,192 tokens, for production; "
        "left out, so taken as titan init proposes: --nodes 2 --seq-len 8192"
    )
    told = json.loads(titan("plan", "--model", "8B", "--gpu", "h100-80", "--gpus-per-node", "2", "--json").out)
    assert told["taken"] == {"--nodes": "2", "--seq-len": "8192", "--goal": "production"}
    assert told["candidates"][0]["config"]["training.seq_len"] == 8192


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_file_is_written_although_nobody_reads_on(
    titan_command: tuple[str, ...], tmp_path: Path, more: tuple[str, ...]
) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [*titan_command, *SMALL, "--output", "run.toml", *more]
    done = subprocess.run(words, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert done.stderr == b""
    assert check(load(tmp_path / "run.toml", environ={})).ok


def test_a_file_that_cannot_be_written_is_told_instead_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(path: str, *_: str, **__: bool) -> list[Any]:
        raise TitanError(report.error("U125", f"cannot write {path}: no space", "make room"))

    monkeypatch.setattr(of_plan, "write_config", full)
    asked = Asked(model="8B", gpu="h100-80", nodes="1", gpus_per_node="2", seq_len="2k")
    with pytest.raises(TitanError, match="U125"):
        plan(None, None, (), asked, output=str(tmp_path / "run.toml"), force=False, as_json=True)
    assert capsys.readouterr().out == ""
