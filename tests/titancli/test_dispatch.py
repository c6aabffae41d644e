"""How a command line becomes an exit code: streams that are closed or full, signals, words without meaning."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_reader_that_goes_away_is_no_error(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    ran = subprocess.Popen(
        [*titan_command, "validate", "--preset", "3d-405b"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert ran.stdout is not None
    assert ran.stderr is not None
    ran.stdout.close()
    assert ran.stderr.read() == ""
    assert ran.wait(timeout=30) == 1
    ran.stderr.close()


def test_two_dashes_alone_are_no_command_and_help(titan: Callable[..., Any]) -> None:
    assert titan("--").out == titan("--help").out


@pytest.mark.parametrize(
    "words", [("presets",), ("validate", "--preset", "3d-405b", "--json"), ("--help",)], ids=" ".join
)
@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), (">/dev/full", 1), ("2>&-", 0), ("<&- >&- 2>&-", 0)],
    ids=["closed", "full", "no-errors", "none"],
)
def test_stream_that_is_closed_or_full_brings_no_traceback(
    titan_command: tuple[str, ...], words: tuple[str, ...], redirection: str, code: int
) -> None:
    line = f"{shlex.join([*titan_command, *words])} {redirection}"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    told = "error[U107]: cannot write the output: no space left on device\n  fix: send it where there is room\n"
    assert (ran.returncode, ran.stderr) == (code, told if code else "")


def test_errors_on_a_full_disk_still_have_their_exit_code(titan_command: tuple[str, ...]) -> None:
    ran = subprocess.run(["sh", "-c", f"{shlex.join([*titan_command, 'nonsense'])} 2>/dev/full"], check=False)
    assert ran.returncode == 2


def test_ctrl_c_while_titan_starts_shows_no_traceback(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    # A module that is imported early sends the signal, so that no clock decides when it comes.
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", "utf-8")
    ran = subprocess.run(
        [*titan_command, "presets"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
