"""Dotted flags of a command line: `--section.key VALUE`, `--section.key=VALUE`, `--no-section.key`.

Knows which words belong to a dotted flag. Does not know whether a value is right: sources.py reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.keys import field_types, is_boolean

_DOTTED = re.compile(r"--(?P<no>no-)?(?P<key>[A-Za-z_][\w-]*(?:\.[\w-]+)+)(?P<given>=(?P<value>.*))?", re.DOTALL)
_NUMBER = re.compile(r"-[\d.]")


@dataclass(frozen=True, slots=True)
class Flag:
    """A dotted flag as it was typed.

    `value` is the text given, True for a bare boolean flag, False for `--no-section.key`, and None where a
    value is missing. `text` is the flag itself: `--section.key` or `--no-section.key`.
    """

    key: str
    value: str | bool | None
    text: str


def split_flags(argv: Sequence[str]) -> tuple[list[str], tuple[Flag, ...]]:
    """Take the dotted flags out of a command line: (the other words in their order, the flags in theirs).

    A boolean key takes the next word only if that is `true` or `false`; every other key always takes one. An
    unknown key takes one that looks like a value. Nothing after a lone `--` is taken.
    """
    rest: list[str] = []
    flags: list[Flag] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*rest, word, *words], tuple(flags)
        match = _DOTTED.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        key, value = match["key"], match["value"]
        text = f"--{match['no'] or ''}{key}"
        if match["given"] is not None:
            flags.append(Flag(key, value, text))
        elif match["no"]:
            flags.append(Flag(key, False, text))
        elif words and _takes(key, words[0]):
            flags.append(Flag(key, words.pop(0), text))
        else:
            flags.append(Flag(key, True if is_boolean(key) else None, text))
    return rest, tuple(flags)


def _takes(key: str, word: str) -> bool:
    """Whether the next word is the value of this key."""
    if is_boolean(key):
        return word in ("true", "false")
    if key in field_types():
        return word != "--"
    # A misspelled flag must not swallow the config file that follows it.
    looks_like_value = not word.startswith("-") or _NUMBER.match(word) is not None
    return looks_like_value and not word.endswith(".toml") and not os.path.isfile(word)
