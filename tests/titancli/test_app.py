"""The command line itself: mistakes in it, what it imports, how fast it answers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIGLESS = ("presets", "doctor", "monitor", "logs")
EVERY_COMMAND = (
    ("--help",),
    ("--version",),
    ("launch", "--help"),
    ("presets",),
    ("presets", "--json"),
    ("validate", "--preset", "3d-405b"),
    ("validate", "--preset", "3d-405b", "--json"),
    ("plan", "--preset", "quickstart", "--cluster.gpu", "h200"),
    ("launch", "--preset", "quickstart", "--dry-run"),
    ("launch", "--preset", "3d-405b"),
    ("doctor", "--help"),
    ("monitor", "--once"),
    ("monitor", "--json"),
    ("logs",),
)


def test_wrong_command_names_the_nearest(titan: Callable[..., Any]) -> None:
    ran = titan("lanch", "--preset", "quickstart")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error[U101]: there is no command lanch\n  fix: write launch\n"


def test_wrong_command_with_no_near_one_lists_all(titan: Callable[..., Any]) -> None:
    assert "use one of launch, validate, plan, presets, doctor, monitor, logs" in titan("zzzz").err


def test_wrong_flag_names_the_nearest(titan: Callable[..., Any]) -> None:
    ran = titan("launch", "--dryrun")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error[U102]: titan launch has no flag --dryrun\n  fix: write --dry-run\n"


@pytest.mark.parametrize(
    "words", [("logs", "--rank", "x"), ("presets", "extra"), ("validate", "--preset"), ("launch", "a.toml", "b.toml")]
)
def test_wrong_use_is_one_finding_and_exit_2(titan: Callable[..., Any], words: tuple[str, ...]) -> None:
    ran = titan(*words)
    assert ran.code == 2
    assert ran.err.startswith("error[U105]: ")
    assert f"fix: see titan {words[0]} --help" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", CONFIGLESS)
def test_command_without_config_refuses_keys(titan: Callable[..., Any], command: str) -> None:
    ran = titan(command, "--training.steps", "4")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"error[U104]: titan {command} takes no config, so --training.steps means nothing to it\n"
        "  fix: leave --training.steps out\n"
    )


def test_usage_errors_with_json_leave_stdout_empty(titan: Callable[..., Any]) -> None:
    ran = titan("presets", "--json", "--nonsense")
    assert (ran.code, ran.out) == (2, "")


def test_without_words_it_helps(titan: Callable[..., Any]) -> None:
    ran = titan()
    assert ran.code == 0
    commands = ("launch", "validate", "plan", "presets", "doctor", "monitor", "logs")
    assert all(f"  {command}" in ran.out for command in commands)


def test_version_is_that_of_the_package(titan: Callable[..., Any]) -> None:
    from importlib.metadata import version

    assert titan("--version").out == f"titan {version('titan-train')}\n"


def test_no_command_of_a_later_release_is_offered(titan: Callable[..., Any]) -> None:
    text = titan("--help").out
    assert not [word for word in ("init", "explain-config", "compare", "import") if f"  {word}" in text]


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


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=" ".join)
def test_no_command_imports_torch(words: tuple[str, ...], finished_run: tuple[Path, Any]) -> None:
    code = (
        f"import sys; sys.argv = ['titan', *{list(words)!r}]\n"
        "from titancli.dispatch import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'engine.model', 'engine.build', 'engine.loop'} & set(sys.modules)\n"
        "print('imported:', sorted(heavy), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=finished_run[0].parents[1], check=True
    )
    assert ran.stderr.endswith("imported: []\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("LAUNCH",), "error[U101]: there is no command LAUNCH\n  fix: write launch\n"),
        (
            ("--preset", "quickstart", "validate"),
            "error[U102]: --preset stands before the command, and titan itself has no such flag\n"
            "  fix: write it after the command: titan validate --preset\n",
        ),
        (
            ("--json", "presets"),
            "error[U102]: --json stands before the command, and titan itself has no such flag\n"
            "  fix: write it after the command: titan presets --json\n",
        ),
    ],
    ids=["case", "valued", "bare"],
)
def test_misplaced_word_is_told_with_its_place(titan: Callable[..., Any], words: tuple[str, ...], told: str) -> None:
    ran = titan(*words)
    assert (ran.code, ran.out, ran.err) == (2, "", told)


@pytest.mark.parametrize("preset", ["", "--json"])
def test_flag_is_not_taken_for_a_preset(titan: Callable[..., Any], preset: str) -> None:
    ran = titan("validate", "--preset", preset)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[U105]: --preset needs a name, and ")


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


def test_terminal_of_ascii_gets_what_it_can_show(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    ran = titan("monitor", "done", "--once", cwd=finished_run[0].parents[1], PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert "done ? finished" in ran.out


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
