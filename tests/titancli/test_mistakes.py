"""What a person reads who has mistyped a command line: one finding, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from titancli.commands import commands, groups, leaves
from titancli.dispatch import run_command_line
from titancli.help import KEYS
from titancli.mistakes import TAKES_CONFIG

CONFIGLESS = tuple(name for name in (*groups(), *leaves()) if name not in TAKES_CONFIG)


def test_wrong_command_names_the_nearest(titan: Callable[..., Any]) -> None:
    ran = titan("lanch", "--preset", "quickstart")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error[U101]: there is no command lanch\n  fix: write launch\n"


def test_wrong_command_with_no_near_one_lists_all(titan: Callable[..., Any]) -> None:
    assert f"use one of {', '.join(commands())}\n" in titan("zzzz").err


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
def test_command_without_config_refuses_keys(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line((*command.split(), "--training.steps", "4")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"error[U104]: titan {command} takes no config, so --training.steps means nothing to it\n"
        "  fix: leave --training.steps out\n"
    )


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


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("explain", "P101"), "write explain-config"),
        (("train", "run.toml"), "write launch"),
        (("run.toml",), "write titan validate run.toml, or titan launch run.toml"),
        (("torchtitan.toml", "import"), "write titan validate torchtitan.toml, or titan launch torchtitan.toml"),
        (("help",), "write titan --help"),
        (("help", "plan"), "write titan plan --help"),
        (("help", "data"), "write titan data --help"),
        (("help", "data", "check"), "write titan data check --help"),
        (("data", "help", "prepare"), "write titan data prepare --help"),
        (("data", "chek"), "write data check"),
        (("data", "Prep", "run.toml"), "write data prepare"),
        (("data", "run.toml"), "write titan data check run.toml, or titan data prepare run.toml"),
        (("checkpoint", "run.toml"), "see titan checkpoint --help"),
        (("checkpoint", "zzzz"), "use one of ls, verify, export, import"),
        (("verify",), "write checkpoint verify"),
        (("tokenize", "run.toml"), "write data prepare"),
        (("data", "--json", "check"), "write it after the command: titan data check --json"),
        (("data", "check", "--smaple", "3"), "write --sample"),
        (("data", "check", "--lr", "3"), "write --optimizer.lr"),
        (("checkpoint", "ls", "--dumpfolder"), "write --dump-folder"),
        (("validate", "--lr", "3"), "write --optimizer.lr"),
        (("validate", "--model", "8B"), "write --model.flavor"),
        (("validate", "--steps", "3"), "write --training.steps or --validation.steps"),
        (("plan", "--dim", "3"), "write --model.shape.dim"),
        (("plan", "--modle", "8B"), "write --model"),
        (("init", "fsdp-8b"), "write --preset fsdp-8b, or see titan init --help"),
        (("init", "extra"), "see titan init --help"),
        (("doctor", "--steps", "3"), "use one of --measure, --output, --json, --help"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_mistake_is_told_with_what_is_meant(
    words: tuple[str, ...], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(words) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.partition("\n")[2]) == ("", f"  fix: {fix}\n")


def test_every_command_that_takes_a_config_says_so_in_its_help() -> None:
    assert {name for name, each in leaves().items() if each.epilog == KEYS} == set(TAKES_CONFIG)
