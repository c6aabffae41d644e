"""Pieces of a page: tables, texts that a page would read as its own marks, and the last line.

Knows the marks of Markdown. Does not know what a page says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PLACE = re.compile(r"\{([\w.]+)[^}]*\}")
_CODE = re.compile(r"(`[^`]*`)")


def text(lines: Iterable[str]) -> str:
    """The page of these lines, with where it comes from below."""
    return "\n".join([*lines, "", "---", "", "Written by `python -m titancli.pages`."]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; one that says so where there are no rows."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines] if lines else ["Nothing of its own."]


def prose(words: str) -> str:
    """A text of the engine's as Markdown: what stands between backticks as it is, the rest without marks."""
    pieces = _CODE.split(words)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", piece) for piece in pieces)


def form(words: str) -> str:
    """The text of a rule before it meets a config: places for its numbers in angle brackets."""
    return _PLACE.sub(lambda place: f"<{place[1].rpartition('.')[2]}>", words)


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
