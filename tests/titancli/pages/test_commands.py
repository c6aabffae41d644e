"""The page of a command: how it ends, what it reads, what it can refuse."""

from __future__ import annotations

import pytest

from titancli.commands import leaves
from titancli.pages.commands import index, pages


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The page of every command, by its file."""
    return pages()


def test_every_command_has_a_page_that_the_index_names(written: dict[str, str]) -> None:
    assert list(written) == [f"{name.replace(' ', '-')}.md" for name in leaves()]
    assert [name for name in written if f"]({name})" not in index()] == []


@pytest.mark.parametrize("name", leaves())
def test_page_tells_the_end_of_a_wrong_command_line(name: str, written: dict[str, str]) -> None:
    (row,) = [line for line in written[f"{name.replace(' ', '-')}.md"].splitlines() if line.startswith("| 2 | ")]
    assert "the command line" in row
    assert row.endswith("is wrong |" if name != "import" else "nothing is written |")


def test_page_shows_the_help_of_80_columns(written: dict[str, str]) -> None:
    block = written["plan.md"].split("```")[1]
    assert block.startswith("\nUsage: titan plan [OPTIONS] [CONFIG]\n")
    assert 70 < max(map(len, block.splitlines())) <= 80


def test_page_tells_what_the_command_can_refuse(written: dict[str, str]) -> None:
    assert "| U123 | `--top <word>: that is no number of layouts to show` |" in written["plan.md"]
    assert "U123" not in written["presets.md"]
