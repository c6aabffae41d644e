"""The page of a command: how it ends, what it reads, what it can refuse."""

from __future__ import annotations

import pytest

from titancli.app import parsed
from titancli.pages.commands import index, pages

PAGES = pages()


def test_every_command_has_a_page_that_the_index_names() -> None:
    assert list(PAGES) == [f"{name}.md" for name in parsed().commands]
    assert [name for name in parsed().commands if f"]({name}.md)" not in index()] == []


@pytest.mark.parametrize("name", parsed().commands)
def test_page_tells_the_end_of_a_wrong_command_line(name: str) -> None:
    (row,) = [line for line in PAGES[f"{name}.md"].splitlines() if line.startswith("| 2 | ")]
    assert "the command line" in row
    assert row.endswith("is wrong |" if name != "import" else "nothing is written |")


def test_page_shows_the_help_of_80_columns() -> None:
    block = PAGES["plan.md"].split("```")[1]
    assert block.startswith("\nUsage: titan plan [OPTIONS] [CONFIG]\n")
    assert 70 < max(map(len, block.splitlines())) <= 80


def test_page_tells_what_the_command_can_refuse() -> None:
    assert "| U123 | `--top <word>: that is no number of layouts to show` |" in PAGES["plan.md"]
    assert "U123" not in PAGES["presets.md"]
