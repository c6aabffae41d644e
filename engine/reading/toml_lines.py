"""The line on which each key of a TOML text is written.

Knows the structure of TOML: headers, dotted and quoted keys, inline tables, arrays, strings of
several lines. Does not know values or mistakes: the text must be one that tomllib has parsed.
"""

from __future__ import annotations

import re
import tomllib
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Names of tables and keys, with a position (from 0) where a list of tables or values stands."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_NAME = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_STRING = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'''
    r"""|'''(?:[^']|'(?!''))*'{3,5}"""
    r'''|"(?:[^"\\]|\\.)*"'''
    r"""|'[^']*'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) where each key and table is first named, by its path; `text` must be valid TOML.

    Inside a list, the position is part of the path: the `x` of the second `[[job]]` is `("job", 1, "x")`.
    """
    return _Reader(text).read()


class _Reader:
    """A cursor over the text, and the lines found so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_at = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        self._list_sizes: dict[KeyPath, int] = {}

    def read(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while not self._at_end_after_blanks():
            if self._takes("[["):
                table = self._list_header()
            elif self._takes("["):
                table = self._note_names(())
                self._takes("]")
            else:
                self._key_and_value(table)
        return self._lines

    def _at_end_after_blanks(self) -> bool:
        self._skip(_BLANK)
        return self._at >= len(self._text)

    def _list_header(self) -> KeyPath:
        """`[[a.b]]`: one more table in the list `a.b`."""
        names = self._names()
        parent = self._note((), names[:-1])
        path = (*parent, names[-1])
        self._lines.setdefault(path, self._line_now())
        self._list_sizes[path] = self._list_sizes.get(path, 0) + 1
        table = (*path, self._list_sizes[path] - 1)
        self._lines[table] = self._line_now()
        self._takes("]]")
        return table

    def _key_and_value(self, table: KeyPath) -> None:
        path = self._note_names(table)
        self._takes("=")
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._takes("["):
            self._list(path)
        elif self._takes("{"):
            self._inline_table(path)
        elif not self._skip(_STRING):
            self._skip(_SCALAR)

    def _list(self, path: KeyPath) -> None:
        position = 0
        self._skip(_BLANK)
        while not self._takes("]"):
            element = (*path, position)
            self._lines.setdefault(element, self._line_now())
            self._value(element)
            self._skip(_BLANK)
            self._takes(",")
            self._skip(_BLANK)
            position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        while not self._takes("}"):
            self._key_and_value(path)
            self._skip(_BLANK)
            self._takes(",")
            self._skip(_BLANK)

    def _note_names(self, table: KeyPath) -> KeyPath:
        return self._note(table, self._names())

    def _note(self, table: KeyPath, names: list[str]) -> KeyPath:
        """Note each table on the way; a list on the way means its newest table."""
        path = table
        for name in names:
            path = (*path, name)
            self._lines.setdefault(path, self._line_now())
            if path in self._list_sizes:
                path = (*path, self._list_sizes[path] - 1)
        return path

    def _names(self) -> list[str]:
        """A dotted key, with its quotes and escapes read."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            name = self._skip(_NAME)
            assert name, f"no key at offset {self._at}: the text was not valid TOML"
            names.append(str(tomllib.loads(f"name = {name}")["name"]) if name[0] in "\"'" else name)
            self._skip(_SPACE)
            if not self._takes("."):
                return names

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Pass over what the pattern matches here, and hand it back."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def _takes(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _line_now(self) -> int:
        self._line += self._text.count("\n", self._counted_at, self._at)
        self._counted_at = self._at
        return self._line
