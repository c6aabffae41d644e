"""Values and configs as TOML text.

Knows how TOML is written. Does not know defaults: every key that has a value is written.
"""

from __future__ import annotations

import re
from typing import Any

from engine.config import Config
from engine.keys import field_types, value_of

_MOST_DECIMAL_BITS = 2000
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_toml(config: Config) -> str:
    """A whole config as TOML that `load` reads back to an equal Config; keys without a value are left out."""
    sections: dict[str, list[str]] = {}
    for key in field_types():
        value = value_of(config, key)
        if value is not None:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    return "\n".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in sections.items())


def toml_value(value: Any) -> str:
    """A boolean, number, text, list or table (inline) as TOML writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        # Python refuses to print integers of thousands of digits in decimal.
        case int() if value.bit_length() > _MOST_DECIMAL_BITS:
            return hex(value)
        case str():
            return f'"{"".join(_letter(letter) for letter in value)}"'
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{toml_key(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    return str(value)


def toml_key(name: str) -> str:
    """One part of a dotted key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def _letter(letter: str) -> str:
    code = ord(letter)
    # Controls are not allowed in TOML; halves of a surrogate pair (undecodable bytes) cannot even be printed.
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF:
        return _ESCAPES.get(letter, f"\\u{code:04x}")
    return _ESCAPES.get(letter, letter)
