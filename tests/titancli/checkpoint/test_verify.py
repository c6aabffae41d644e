"""`titan checkpoint verify`: whether checkpoints are whole, in words and in the exit code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from resuming import train

import titancli.checkpoint.verify
from engine.errors import TitanError
from titancli.checkpoint.verify import verify


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    run = tmp_path_factory.mktemp("runs") / "first"
    train({"training__steps": 2, "checkpoint__interval": 1}, str(run))
    (run / "config.toml").write_text("[checkpoint]\nenable = true\n")
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "runs" / "first"))


def test_all_of_them_are_looked_at_in_one_process(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = run / "checkpoints" / "step-1" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    code = verify(str(run), dump_folder="runs", step=None, every=True, values=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (code, told["whole"], [row["name"] for row in told["checkpoints"]]) == (1, False, ["step-1", "step-2"])
    damaged, whole = told["checkpoints"]
    assert [(fault["file"], fault["tensor"]) for fault in damaged["faults"]] == [("__0_0.distcp", None)]
    assert (whole["whole"], whole["faults"], whole["read_bytes"] > 0) == (True, [], True)


def test_the_newest_is_looked_at_and_people_are_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert verify("first", dump_folder="runs", step=None, values=False, as_json=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("runs/first/checkpoints/step-2: whole (2 files, ")
    assert "values not read" in text


def test_a_step_that_is_not_committed_is_refused(run: Path) -> None:
    with pytest.raises(TitanError, match=r"U198.*--step 7 is no committed checkpoint of "):
        verify(str(run), dump_folder="runs", step=7, values=False, as_json=False)


def test_a_run_without_a_committed_checkpoint_is_refused(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(TitanError, match=r"U198.*has no checkpoint that was saved to its end"):
        verify(str(run), dump_folder="runs", step=None, values=False, as_json=False)


def test_a_process_that_dies_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = (sys.executable, "-c", "import sys; sys.exit('no memory')")
    monkeypatch.setattr("titancli.engine_process.tied_to_this", lambda _: dies)
    with pytest.raises(TitanError, match=r"R198.*exited with 1: no memory"):
        verify(str(run), dump_folder="runs", step=None, values=False, as_json=False)


def test_one_that_its_run_prunes_meanwhile_is_not_called_damaged(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = titancli.checkpoint.verify.asked_for

    def pruned_then(*words: Any, every: bool) -> list[str]:
        names = listed(*words, every=every)
        shutil.rmtree(run / "checkpoints" / names[0])
        return names

    monkeypatch.setattr(titancli.checkpoint.verify, "asked_for", pruned_then)
    assert verify(str(run), dump_folder="runs", step=None, every=True, values=False, as_json=True) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["checkpoints"]] == ["step-2"]
    with pytest.raises(TitanError, match=r"U198.*step-2 was deleted while it was looked at"):
        verify(str(run), dump_folder="runs", step=None, values=False, as_json=False)
