"""The worker, started as torchrun starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ready import Done, ready
from ready import __file__ as READY
from synthetic import tiny

from engine.events import event_file, read_new
from engine.sources import to_toml

ROOT = Path(__file__).parents[2]


def workers(run: Path, processes: int) -> subprocess.CompletedProcess[str]:
    """Runs `python -m engine RUN` in so many processes under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return subprocess.run(
        [*command, "-m", "engine", str(run)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def alone(*words: str, **environment: str) -> Done:
    """Does what `python -m engine WORDS` does as the only process, in one that has torch imported."""
    return ready().run(READY, "as_module", "engine", *words, environ=os.environ | environment, timeout_s=120)


def events(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Events of a rank."""
    return read_new(event_file(run, rank))[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the tiny config on the standard library's text."""
    (tmp_path / "config.toml").write_text(to_toml(tiny(2, training__steps=3)))
    return tmp_path


@pytest.mark.world
def test_two_workers_train_on_real_text_and_say_nothing(run: Path) -> None:
    done = workers(run, 2)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "OMP_NUM_THREADS" not in line and "****" not in line]
    assert (done.stdout, [line for line in lines if line.strip()]) == ("", [])
    assert [event["step"] for event in events(run) if event["kind"] == "step"] == [1, 2, 3]
    assert events(run, 1)[-1]["kind"] == "run_ended"
    started = next(event for event in events(run) if event["kind"] == "run_started")
    assert started["data"]["dataset"] == "stdlib"


@pytest.mark.world
def test_variables_of_titan_do_not_reach_a_worker(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(tiny(1, training__steps=2)))
    assert alone(str(tmp_path), TITAN_TRAINING__STEPS="1").returncode == 0
    assert [event["step"] for event in events(tmp_path) if event["kind"] == "step"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[training]\nseq_lem = 16\n", 2, "seq_len"),
        ("[cluster]\ngpu = 'cpu'\n[parallelism]\ndata_parallel_shard_degree = 3\n", 2, "error[P"),
        ("[training\n", 2, "config.toml"),
    ],
)
def test_a_mistake_in_the_file_is_told_without_a_traceback(tmp_path: Path, text: str, code: int, words: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    done = alone(str(tmp_path))
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_text_is_told_without_a_traceback_and_in_the_events(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("")
    config = tiny(1, training__dataset="text", training__dataset_path=str(corpus))
    (tmp_path / "config.toml").write_text(to_toml(config))
    done = alone(str(tmp_path))
    assert done.returncode == 2
    assert "0 documents" in done.stderr
    assert "Traceback" not in done.stderr
    ended = events(tmp_path)[-1]
    assert (ended["kind"], ended["exit_code"], ended["first_failure"]["type"]) == ("run_ended", 2, "TitanError")


def test_a_folder_is_asked_for() -> None:
    done = alone()
    assert (done.returncode, done.stderr) == (2, "usage: python -m engine RUN_FOLDER\n")


@pytest.mark.world
def test_another_number_of_workers_than_planned_fails_with_a_traceback_and_an_event(run: Path) -> None:
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = alone(str(run), **variables)
    assert done.returncode == 1
    assert "the plan is for 2 processes and 1 were started" in done.stderr
    ended = events(run)[-1]
    assert (ended["exit_code"], ended["first_failure"]["type"]) == (1, "AssertionError")


@pytest.mark.world
def test_compiling_tells_its_phase_and_nothing_else(tmp_path: Path) -> None:
    config = tiny(1, training__steps=2, compile__enable=True, model__shape__n_layers=1)
    (tmp_path / "config.toml").write_text(to_toml(config))
    done = alone(str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    phases = [(event["name"], event["state"]) for event in events(tmp_path) if event["kind"] == "phase"]
    assert phases == [(name, state) for name in ("build", "compile", "train") for state in ("begin", "end")]


def test_events_are_json_lines_with_version_time_and_rank(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(tiny(1, training__steps=1)))
    assert alone(str(tmp_path)).returncode == 0
    lines = event_file(tmp_path, 0).read_text().splitlines()
    assert all({"v", "time", "rank", "kind"} <= json.loads(line).keys() for line in lines)
