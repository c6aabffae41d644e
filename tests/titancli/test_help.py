"""How help is laid out: nothing cut off, nothing wider than the screen, lines that can be pasted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from titancli.app import parsed
from titancli.commands import groups, leaves
from titancli.help import continued

HELPS = ((), *(tuple(name.split()) for name in (*groups(), *leaves())))


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_keeps_within_the_screen_and_cuts_nothing(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    command = parsed()
    with command.make_context("titan", [], resilient_parsing=True) as context:
        for word in words:
            command = command.commands[word]
            context = command.make_context(word, [], parent=context, resilient_parsing=True)
        lines = command.get_help(context).splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert not [line for line in lines[1:] if line.endswith("...")]


@pytest.mark.parametrize("words", [("-h",), ("plan", "-h")], ids=" ".join)
def test_short_flag_helps_too(titan: Callable[..., Any], words: tuple[str, ...]) -> None:
    assert titan(*words).out == titan(*words[:-1], "--help").out


def test_usage_brackets_what_may_be_left_out(titan: Callable[..., Any]) -> None:
    heads = [titan(name, "--help").out.partition("\n")[0] for name in ("validate", "explain-config", "import")]
    assert heads == [
        "Usage: titan validate [OPTIONS] [CONFIG]",
        "Usage: titan explain-config [OPTIONS] [CONFIG] [KEY]",
        "Usage: titan import [OPTIONS] FILE",
    ]


def test_long_line_goes_on_after_a_backslash() -> None:
    assert continued("titan plan --preset fsdp-8b --training.seq_len 4096", 40) == [
        "titan plan --preset fsdp-8b \\",
        "    --training.seq_len 4096",
    ]
