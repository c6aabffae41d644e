"""What is wrong with a text that is not TOML, in words, with line and column (rule S103).

Knows the messages of tomllib. The finding gives the first fault only: nothing after it can be read.
"""

from __future__ import annotations

import re

from engine.errors import Finding

_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

_WORDS = (
    (r"Invalid value", "this is no value", 'put text in quotes: key = "text"'),
    (r"Invalid statement", "this is no key", "write key = value, or [section]"),
    (r"Cannot overwrite a value|Duplicate inline table key .*", "the key is given twice", "keep one of the two"),
    (r"Cannot declare \('(.*)',?\) twice", r"[\1] is given twice", "put all its keys below one [header]"),
    (r"Cannot (?:mutate immutable|redefine) namespace .*", "the table is given twice", "put all its keys in one place"),
    (r"Expected '=' after a key.*", "there is no = after the key", "write key = value"),
    (
        r"Expected newline or end of document after a statement",
        "the line goes on after the value",
        "end the line there",
    ),
    (r"Expected '\]+' at the end of .*", "the header is not closed", "write [section]"),
    (r"Illegal character '\\n'|Unterminated string|Expected \"'+\"", "the quotes are not closed", "close them"),
    (r"Unescaped '\\' in a string", "a backslash in quotes needs another", "write \\\\, or use single quotes"),
    (r"Unclosed array", "the [ is not closed", "close it with ]"),
    (r"Unclosed inline table", "the { is not closed", "close it with }"),
    (r"Exceeds the limit .*", "the number is too long", "write a shorter one"),
    (r"(.).*", None, "correct this line"),
)
"""Messages of tomllib, what they mean, and the way out; the last takes any other message as it is."""


def syntax_finding(error: Exception, text: str, file: str) -> Finding:
    """The finding about what tomllib raised on this text: a ValueError, or a RecursionError."""
    if isinstance(error, RecursionError):
        return _finding("brackets stand too deep in brackets", "write fewer of them", file, None)
    place = _PLACE.search(str(error))
    raw = str(error)[: place.start()] if place else str(error)
    last = text.rstrip()
    line = int(place["line"]) if place and place["line"] else last.count("\n") + 1
    column = int(place["column"]) if place and place["column"] else len(last.rpartition("\n")[2]) + 1
    words, fix = _in_words(raw)
    where = f"line {line}, column {column}: " if place else ""
    return _finding(f"not TOML: {where}{words}", fix, file, line if place else None)


def _in_words(raw: str) -> tuple[str, str]:
    for pattern, words, fix in _WORDS:
        match = re.fullmatch(pattern, raw, re.DOTALL)
        if match:
            return match.expand(words) if words else f"{raw[:1].lower()}{raw[1:]}", fix
    return raw, "correct this line"


def _finding(message: str, fix: str, file: str, line: int | None) -> Finding:
    return Finding(rule="S103", severity="error", key="", message=message, fix=fix, file=file, line=line)
