"""The examples of the help texts are command lines that titan takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.sources import load, preset_names, preset_text, split_flags
from titancli.commands import command_of, leaves
from titancli.examples import EXAMPLES

LINES = [example.line for examples in EXAMPLES.values() for example in examples]
# Those that take no run, no network, no minute and no other program's file.
CHEAP = (
    "titan plan --model 8B --gpu h100-80",
    "titan validate run.toml",
    "titan validate run.toml --json",
    "titan launch --preset quickstart --dry-run",
    "titan presets --json",
    "titan schema --output titan.schema.json",
    "titan schema",
)


def words_of(line: str) -> list[str]:
    """The words that titan gets of a line for the shell."""
    inside = re.fullmatch(r'eval "\$\((.*)\)"', line)
    return shlex.split((inside[1] if inside else line).partition(" > ")[0])[1:]


def test_every_command_has_two_to_five_examples_in_the_order_of_the_commands() -> None:
    assert list(EXAMPLES) == list(leaves())
    assert {len(examples) for examples in EXAMPLES.values()} <= {2, 3, 4, 5}


@pytest.mark.parametrize("line", LINES)
def test_example_is_parsed(line: str) -> None:
    words, flags = split_flags(words_of(line))
    command = command_of(words)
    assert command is not None
    leaves()[command].make_context(command, words[len(command.split()) :], obj=flags)
    assert load(flags=flags, environ={}).findings == ()


@pytest.mark.parametrize("line", LINES)
def test_example_stands_under_its_command_and_names_presets_that_exist(line: str) -> None:
    words = words_of(line)
    assert line in [example.line for example in EXAMPLES[command_of(words) or ""]]
    assert [word for flag, word in pairwise(words) if flag == "--preset"] in [
        [],
        *([name] for name in preset_names()),
    ]


@pytest.mark.parametrize("line", CHEAP)
def test_example_runs(line: str, titan: Callable[..., Any], tmp_path: Path) -> None:
    assert line in LINES
    (tmp_path / "run.toml").write_text(preset_text("quickstart"), "utf-8")
    ran = titan(*words_of(line))
    assert ran.code == 0
    assert "error[" not in ran.err
    assert "warning[" not in ran.err
