"""`titan logs` from outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.events import EventLog
from titancli.monitor.follow import Launcher


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A failed run of three ranks: rank 2 at fault, as only its log tells."""
    run = tmp_path / "runs" / "x"
    for rank, text in enumerate(("fine\n", "fine too\n", "Traceback (most recent call last):\nValueError: boom-17\n")):
        folder = run / "logs" / "x_abc" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text, "utf-8")
        (folder / "stdout.log").write_text(f"rank {rank} says hello\n", "utf-8")
    (run / "logs" / "torchrun.log").write_text("torchrun's own\n", "utf-8")
    (run / "config.toml").write_text("", "utf-8")
    own = Launcher.this_process()
    Launcher(pid=own.pid, host=own.host, created=own.created, exit_code=1).write(run)
    return run


def test_first_failure_comes_first_and_torchrun_last(titan: Callable[..., Any], run: Path) -> None:
    ran = titan("logs")
    headings = [line.split(":")[0] for line in ran.out.splitlines() if line.startswith("==> ")]
    assert ran.out.splitlines()[0] == "rank 2 failed first: ValueError: boom-17"
    assert headings == [
        *(f"==> rank {rank} {stream}" for rank in (2, 0, 1) for stream in ("stderr", "stdout")),
        "==> torchrun",
    ]
    assert (ran.code, ran.err) == (0, "")
    assert run.name == "x"


def test_words_of_a_launcher_without_a_terminal_come_after_all(titan: Callable[..., Any], run: Path) -> None:
    (run / "logs" / "launch.log").write_text("not started again: the disk is full\n", "utf-8")
    ran = titan("logs")
    assert ran.out.splitlines()[-2:] == [
        "==> launcher: runs/x/logs/launch.log <==",
        "not started again: the disk is full",
    ]


def test_one_rank_is_shown_alone(titan: Callable[..., Any], run: Path) -> None:
    text = titan("logs", str(run), "--rank", "1").out
    assert "rank 1 says hello" in text
    assert "rank 0" not in text
    assert "torchrun" not in text


@pytest.mark.usefixtures("run")
def test_rank_that_has_no_log_is_exit_2(titan: Callable[..., Any]) -> None:
    ran = titan("logs", "--rank", "9")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error[U111]: there is no log of rank 9 in runs/x\n  fix: give one of 0-2\n"


def test_error_that_a_rank_recorded_goes_before_its_log(titan: Callable[..., Any], run: Path) -> None:
    error = {"message": {"message": "KeyError: recorded", "extraInfo": {}}}
    (run / "logs" / "x_abc" / "attempt_0" / "2" / "error.json").write_text(json.dumps(error), "utf-8")
    assert titan("logs").out.splitlines()[0] == "rank 2 failed first: KeyError: recorded"


def test_follow_prints_what_comes_and_ends_with_the_run(
    titan_command: tuple[str, ...], run: Path, tmp_path: Path
) -> None:
    own = Launcher.this_process()
    own.write(run)
    EventLog(run, 0).write("run_started", world_size=3, host=own.host, pid=own.pid)
    reader = subprocess.Popen(
        [*titan_command, "logs", "--follow", "--rank", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    while "rank 0 says hello" not in reader.stdout.readline():
        pass
    with (run / "logs" / "x_abc" / "attempt_0" / "0" / "stdout.log").open("a", encoding="utf-8") as file:
        file.write("and more\nhalf a li")
    while "and more" not in (line := reader.stdout.readline()):
        assert "half" not in line
    Launcher(pid=own.pid, host=own.host, created=own.created, exit_code=0).write(run)
    rest = reader.stdout.read()
    assert reader.wait(timeout=20) == 0
    reader.stdout.close()
    assert rest.endswith("half a li\n")


def test_run_in_which_nobody_has_printed_says_so(titan: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "quiet"
    (run / "logs").mkdir(parents=True)
    (run / "config.toml").write_text("", "utf-8")
    ran = titan("logs")
    assert (ran.code, ran.out, ran.err) == (0, "", "runs/quiet: no rank has printed anything\n")


def start_again(run: Path, text: str) -> None:
    """Puts the logs of the attempt so far aside, and begins those of another of one rank."""
    logs = run / "logs"
    earlier = logs / f"earlier-{1 + len(list(logs.glob('earlier-*')))}"
    earlier.mkdir()
    for entry in [entry for entry in logs.iterdir() if not entry.name.startswith(("earlier-", "launch.log"))]:
        entry.rename(earlier / entry.name)
    folder = logs / "x_def" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text(text, "utf-8")
    (logs / "torchrun.log").write_text("torchrun once more\n", "utf-8")


def test_earlier_attempt_of_a_run_that_was_started_again_can_be_read(titan: Callable[..., Any], run: Path) -> None:
    start_again(run, "second try\n")
    newest, first = titan("logs"), titan("logs", "--attempt", "1", "--rank", "1")
    assert "second try" in newest.out
    assert "says hello" not in newest.out
    assert newest.err == "this is attempt 2; those before: titan logs runs/x --attempt N\n"
    assert "rank 1 says hello" in first.out
    assert "torchrun" not in first.out
    assert titan("logs", "--attempt", "2").out.endswith("torchrun once more\n")


@pytest.mark.parametrize("attempt", ["0", "2"])
@pytest.mark.usefixtures("run")
def test_attempt_that_never_was_is_exit_2(titan: Callable[..., Any], attempt: str) -> None:
    ran = titan("logs", "--attempt", attempt)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (f"error[U111]: there is no log of an attempt {attempt} in runs/x\n  fix: leave --attempt out\n")


def test_follow_goes_on_with_the_next_attempt_while_the_launcher_lives(
    titan_command: tuple[str, ...], run: Path, tmp_path: Path
) -> None:
    own = Launcher.this_process()
    own.write(run)
    log = EventLog(run, 0)
    log.write("run_ended", reason="x", exit_code=1, first_failure={"rank": 0, "type": "ValueError", "message": "boom"})
    reader = subprocess.Popen([*titan_command, "logs", "--follow"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    while "torchrun's own" not in reader.stdout.readline():
        pass
    start_again(run, "second try\n")
    while "torchrun once more" not in reader.stdout.readline():
        pass
    Launcher(pid=own.pid, host=own.host, created=own.created, exit_code=0).write(run)
    reader.stdout.read()
    reader.stdout.close()
    assert reader.wait(timeout=20) == 0
