"""The last words of a run that a scheduler started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from titancli.launch.ended import ended


@pytest.mark.parametrize(("code", "exit_code", "word"), [(0, 0, "done: 6 of 6 steps in 20.0 s"), (143, 143, "stopped")])
def test_a_run_ends_with_the_exit_code_and_the_words_of_launch(
    finished_run: tuple[Path, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    code: int,
    exit_code: int,
    word: str,
) -> None:
    run = tmp_path / "done"
    shutil.copytree(finished_run[0], run)
    assert ended(run, code, 20.0) == exit_code
    assert capsys.readouterr().out.startswith(word)
    assert json.loads((run / "launcher.json").read_text("utf-8"))["exit_code"] == exit_code


def test_a_torchrun_that_fails_without_a_word_of_its_ranks_is_a_failed_run(
    finished_run: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "done"
    shutil.copytree(finished_run[0], run)
    shutil.rmtree(run / "events")
    (run / "logs/torchrun.log").write_text("no address\n", "utf-8")
    assert ended(run, 1, 2.0) == 1
    assert capsys.readouterr().err.endswith("  | no address\n")


@pytest.mark.parametrize(("signalled", "nodes", "code"), [(2, 2, 143), (1, 2, 1), (1, 1, 143)])
def test_a_job_that_is_asked_to_end_before_its_ranks_are_up_has_not_failed(
    finished_run: tuple[Path, Any], tmp_path: Path, signalled: int, nodes: int, code: int
) -> None:
    run = tmp_path / "done"
    shutil.copytree(finished_run[0], run)
    shutil.rmtree(run / "events")
    shutil.rmtree(run / "logs/ranks", ignore_errors=True)
    config = (run / "config.toml").read_text("utf-8").replace("nodes = 1\n", f"nodes = {nodes}\n")
    (run / "config.toml").write_text(config, "utf-8")
    last = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n"
    (run / "logs/torchrun.log").write_text(last * signalled, "utf-8")
    assert ended(run, 1, 2.0) == code


def test_a_run_folder_that_is_gone_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(tmp_path / "gone", 0, 1.0) == 1
    assert capsys.readouterr().err.startswith(
        f"error[U197]: the config of the run is not in {tmp_path}/gone any more\n"
    )
