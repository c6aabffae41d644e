"""`titan launch` from outside, up to the first process: what it refuses and in which order."""

from __future__ import annotations

import resource
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.sources import load

WRONG = "[train]\nseqlen = 4096\n"
TOO_LARGE = '[cluster]\ngpu = "h100-80"\nnodes = 2\n'


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "run.toml").write_text(text, "utf-8")
        return "run.toml"

    return write


def test_three_mistakes_are_told_with_lines_and_nothing_is_started(
    titan: Callable[..., Any], file: Callable[[str], str], tmp_path: Path
) -> None:
    path = file('[train]\nseqlen = 4096\n\n[training]\nsteps = "8"\nwarmup-steps = 3\n')
    ran = titan("launch", path)
    places = [line.split()[1] for line in ran.err.splitlines() if line.startswith("  --> ")]
    assert (ran.code, ran.out, places) == (2, "", ["run.toml:2", "run.toml:5", "run.toml:6"])
    assert ran.err.endswith("3 errors; nothing was started\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_mistakes_come_before_hardware(titan: Callable[..., Any], file: Callable[[str], str]) -> None:
    ran = titan("launch", file(WRONG + TOO_LARGE))
    assert ran.code == 2
    assert "H80" not in ran.err


def test_largest_preset_says_what_it_needs_what_is_here_and_what_to_do(titan: Callable[..., Any]) -> None:
    ran = titan("launch", "--preset", "3d-405b")
    assert (ran.code, ran.out) == (3, "")
    first, place, excerpt, fix, last = ran.err.splitlines()
    assert first.startswith("error[H801]: this run needs 512 x h100-96 (64 nodes of 8), and this machine has ")
    assert place.startswith("  --> presets/3d-405b.toml:")
    assert excerpt == '   | gpu = "h100-96"'
    assert fix.endswith("titan launch --preset quickstart")
    assert last == "1 error; nothing was started"


def test_dry_run_prints_the_command_alone_and_writes_nothing(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan("launch", "--preset", "quickstart", "--name", "x", "--dry-run")
    assert ran.code == 0
    words = shlex.split(ran.out)
    assert ran.out.count("\n") == 1
    assert words[0] == "env"
    assert words[-3:] == ["-m", "engine", str(tmp_path / "runs" / "x")]
    assert "nothing was started" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_is_what_launch_writes_down(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    run, _ = finished_run
    ran = titan(
        *("launch", "--preset", "quickstart", "--training.steps", "6", "--lr_scheduler.warmup_steps", "1"),
        *("--name", "other", "--dry-run"),
        cwd=run.parents[1],
        RANK="7",
        WORLD_SIZE="9",
        MASTER_ADDR="nowhere.invalid",
        TITAN_JOB__DESCRIPTION="said",
    )
    written = (run / "command.txt").read_text("utf-8")
    assert ran.out == written.replace("=done", "=other").replace("runs/done", "runs/other")


def test_name_is_the_run_and_is_kept_in_its_config(finished_run: tuple[Path, Any]) -> None:
    run, _ = finished_run
    assert load(run / "config.toml", environ={}).config.job.name == "done"


@pytest.mark.parametrize("word", ["--resume", "--training.steps=6"])
def test_c51_complete_run_says_so(titan: Callable[..., Any], finished_run: tuple[Path, Any], word: str) -> None:
    run, _ = finished_run
    words = ("--preset", "quickstart", "--training.steps", "6", "--lr_scheduler.warmup_steps", "1", "--name", "done")
    ran = titan("launch", *words, word, cwd=run.parents[1], TITAN_JOB__DESCRIPTION="said")
    assert (ran.code, ran.out, ran.err) == (0, "the run runs/done is complete: all 6 steps are done\n", "")


def test_c51_another_config_in_the_same_folder_is_refused(
    titan: Callable[..., Any], finished_run: tuple[Path, Any]
) -> None:
    run, _ = finished_run
    ran = titan("launch", "--preset", "quickstart", "--name", "done", cwd=run.parents[1])
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[R105]: runs/done holds a run of another config: ")
    assert "\n  --> flag --name  job.name\n" in ran.err


def test_full_disk_is_told_and_leaves_nothing(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    ran = subprocess.run(
        [*titan_command, "launch", "--preset", "quickstart", "--name", "x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error[R107]: cannot write the run folder runs/x: ")
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_config_it_says_what_to_give(titan: Callable[..., Any]) -> None:
    ran = titan("launch")
    assert ran.code == 2
    assert "titan launch needs a config" in ran.err
