"""The commands: which there are, in which order, and what they import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titancli.commands import leaves
from titancli.dispatch import run_command_line
from titancli.pages.screen import written

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
    ("compare", "done"),
    ("schema",),
    ("completion", "zsh"),
    ("init", "--model", "debugmodel", "--gpu", "cpu", "--yes", "--output", "made.toml", "--force"),
    ("import", "--help"),
    ("explain-config", "--preset", "3d-405b"),
    ("explain-config", "P101"),
    ("explain-config", "strategies"),
    ("explain-config", "--preset", "fsdp-8b", "--toml"),
    ("data", "check", "--preset", "quickstart"),
    ("data", "prepare", "--preset", "quickstart"),
    ("checkpoint", "ls"),
    ("checkpoint", "verify"),
)
# As a person walks through them, from a config to a run, then what is beside the way.
WALK = (
    *("init", "plan", "validate", "explain-config", "data", "launch", "monitor", "logs"),
    *("checkpoint", "compare", "presets", "doctor", "import", "schema", "completion"),
)
IN_GROUPS = {"data": ("check", "prepare"), "checkpoint": ("ls", "verify", "export", "import")}


def test_usage_errors_with_json_leave_stdout_empty(titan: Callable[..., Any]) -> None:
    ran = titan("presets", "--json", "--nonsense")
    assert (ran.code, ran.out) == (2, "")


def listed(told: str) -> tuple[str, ...]:
    """The commands that a help names."""
    return tuple(line.split()[0] for line in told.partition("Commands:\n")[2].partition("\n\n")[0].splitlines())


def test_without_words_it_lists_the_commands_as_a_person_meets_them(titan: Callable[..., Any]) -> None:
    ran = titan()
    assert (ran.code, listed(ran.out)) == (0, WALK)


@pytest.mark.parametrize("group", IN_GROUPS)
def test_group_without_words_lists_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([group]) == 0
    assert listed(capsys.readouterr().out) == IN_GROUPS[group]


@pytest.mark.parametrize("command", leaves())
def test_one_line_of_every_command_fits_80_columns(command: str) -> None:
    assert len(f"  {command.split()[-1]:<14}  {leaves()[command].help}") <= 78


def test_version_is_that_of_the_package(titan: Callable[..., Any]) -> None:
    from importlib.metadata import version

    assert titan("--version").out == f"titan {version('titan-train')}\n"


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


@pytest.mark.parametrize("preset", ["", "--json"])
def test_flag_is_not_taken_for_a_preset(titan: Callable[..., Any], preset: str) -> None:
    ran = titan("validate", "--preset", preset)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[U105]: --preset needs a name, and ")


def test_terminal_of_ascii_gets_what_it_can_show(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    ran = titan("monitor", "done", "--once", cwd=finished_run[0].parents[1], PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert "done - finished" in ran.out


NARROW = (
    ("--help",),
    ("nonsense",),
    ("validate", "wrong.toml"),
    ("validate", "--preset", "3d-405b"),
    ("validate", "--preset", "fsdp-8b", "--training.local_batch_size", "8"),
    ("plan", "--preset", "quickstart", "--cluster.gpu", "h200"),
    ("explain-config", "--preset", "3d-405b", "parallelism"),
    ("explain-config", "P101"),
    ("explain-config", "strategies"),
    ("presets",),
    ("launch", "--preset", "3d-405b"),
    ("monitor", "done", "--once"),
    ("compare", "done"),
    ("logs", "nowhere"),
    ("data", "--help"),
    ("checkpoint", "ls", "done"),
)


@pytest.mark.parametrize("words", NARROW, ids=" ".join)
def test_output_fits_60_columns_and_has_no_colour_where_none_is_wanted(
    words: tuple[str, ...], finished_run: tuple[Path, Any]
) -> None:
    folder = finished_run[0].parents[1]
    wrong = '[train]\nseqlen = 4096\n[parallelism]\npipeline_parallel_schedule = "1f1b"\ntensor_parallel_degree = 0\n'
    (folder / "wrong.toml").write_text(wrong, "utf-8")
    told = written(words, folder=folder, columns=60, environ={"NO_COLOR": "1"})
    assert "\x1b" not in told
    assert [line for line in told.splitlines() if len(line) > 60] == []


@pytest.mark.parametrize("words", [("nonsense",), ("explain-config", "P101"), ("presets",)], ids=" ".join)
def test_colour_is_for_terminals(words: tuple[str, ...], titan: Callable[..., Any], tmp_path: Path) -> None:
    assert "\x1b[" in written(words, folder=tmp_path, columns=80)
    ran = titan(*words)
    assert "\x1b" not in ran.out + ran.err
