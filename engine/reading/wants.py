"""What a key wants, and how a word of a command line or of the environment is read for it.

Knows the types of config.py. Does not check values: pydantic does.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from engine.keys import field_types

Kind = Literal["whole", "number", "boolean", "text", "list", "table"]


@dataclass(frozen=True, slots=True)
class Want:
    """The values that a key takes: kinds, words to choose from, and bounds of its number."""

    kinds: frozenset[Kind] = frozenset()
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __or__(self, other: Want) -> Want:
        def either(mine: float | None, others: float | None) -> float | None:
            return others if mine is None else mine

        return Want(
            self.kinds | other.kinds,
            self.choices + other.choices,
            either(self.at_least, other.at_least),
            either(self.above, other.above),
            either(self.at_most, other.at_most),
            either(self.below, other.below),
        )

    @property
    def words(self) -> str:
        """`a whole number of at least 1, or "auto"`."""
        number = {"whole": "a whole number", "number": "a number"}
        parts = [number[kind] + self._range() for kind in ("whole", "number") if kind in self.kinds]
        if "boolean" in self.kinds:
            parts.append("true or false")
        if "text" in self.kinds:
            parts.append("text")
        if "list" in self.kinds:
            parts.append("a list of text")
        if len(self.choices) == 1:
            parts.append(f'"{self.choices[0]}"')
        elif self.choices:
            parts.append(f"one of {', '.join(self.choices)}")
        if "table" in self.kinds:
            parts.append(f"a table of names with numbers{self._range()}")
        return ", or ".join(parts)

    def _range(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f" from {_number(self.at_least)} to {_number(self.at_most)}"
        low = f" of at least {_number(self.at_least)}" if self.at_least is not None else ""
        low = low or (f" above {_number(self.above)}" if self.above is not None else "")
        if self.at_most is not None:
            return f"{low} and at most {_number(self.at_most)}" if low else f" of at most {_number(self.at_most)}"
        return f"{low} and below {_number(self.below)}" if self.below is not None else low


@cache
def want(key: str) -> Want:
    """What the config wants at a dotted key; KeyError where there is no such key."""
    return _of_field(field_types()[key])


def _of_field(field: FieldInfo) -> Want:
    return _of_type(field.annotation) | _bounds(field.metadata)


def _of_type(annotation: Any) -> Want:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        extra = [part for mark in arguments[1:] for part in getattr(mark, "metadata", [mark])]
        return _of_type(arguments[0]) | _bounds(extra)
    if origin in (Union, UnionType):
        found = Want()
        for argument in arguments:
            found |= _of_type(argument)
        return found
    if origin is Literal:
        return Want(choices=arguments)
    if origin is tuple:
        return Want(frozenset({"list"}))
    if origin is dict:
        return Want(frozenset({"table"})) | _numberless(_of_type(arguments[1]))
    kinds: dict[Any, Kind] = {int: "whole", float: "number", bool: "boolean", str: "text"}
    assert annotation in kinds or annotation is NoneType, (
        f"config.py uses a type that nobody has put in words: {annotation}"
    )
    return Want(frozenset({kinds[annotation]})) if annotation in kinds else Want()


def _numberless(values: Want) -> Want:
    """The bounds of a table's values, without their kind."""
    return Want(frozenset(), (), values.at_least, values.above, values.at_most, values.below)


def _bounds(metadata: list[Any]) -> Want:
    found = Want()
    for mark in metadata:
        found |= Want(
            at_least=getattr(mark, "ge", None),
            above=getattr(mark, "gt", None),
            at_most=getattr(mark, "le", None),
            below=getattr(mark, "lt", None),
        )
    return found


def read_word(key: str, word: str) -> Any:
    """The value of a word given as a flag or a variable: TOML, else text; a list also comma-separated.

    A key that takes text takes the word as it is, unless it is a quoted TOML string.
    """
    wanted = want(key)
    value = _read_toml(word)
    if "text" in wanted.kinds or word in wanted.choices:
        return value if isinstance(value, str) else word
    if "list" in wanted.kinds and not isinstance(value, list):
        return _read_list(word)
    return word if value is None else value


def _read_list(word: str) -> list[str]:
    """Texts between commas; brackets whose quotes the shell has taken away count for nothing."""
    quoted = _read_toml(f"[{word}]")
    if isinstance(quoted, list) and all(isinstance(item, str) for item in quoted):
        return quoted
    inner = word.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    return [item.strip() for item in inner.split(",") if item.strip()]


def _read_toml(word: str) -> Any:
    """A word as one TOML value; None where it is none."""
    try:
        table = tomllib.loads(f"value = {word}")
    except (ValueError, RecursionError):
        return None
    return table["value"] if table.keys() == {"value"} else None


def is_sound(value: Any) -> bool:
    """Whether a config can hold a value: integers of 64 bits, text in UTF-8 without NUL.

    tomllib and shells hand over others too.
    """
    return not why_unsound(value)


def why_unsound(value: Any) -> str:
    """What a value holds that no config can; empty where it is sound."""
    match value:
        case int():
            return "a number of more than 64 bits" if value.bit_length() >= 64 else ""
        case str() if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
            return "bytes that are not UTF-8"
        case str():
            # The system ends a path or a variable there.
            return "a NUL character" if "\0" in value else ""
        case list():
            return next(filter(None, map(why_unsound, value)), "")
        case dict():
            return next(filter(None, map(why_unsound, (*value, *value.values()))), "")
    return ""


def fits(wanted: Want, value: Any) -> bool:
    """Whether a boolean or number stands within what is wanted."""
    if not is_sound(value):
        return False
    if isinstance(value, bool):
        return "boolean" in wanted.kinds
    if not isinstance(value, int | float) or not wanted.kinds & {"whole", "number"}:
        return False
    if isinstance(value, float) and "number" not in wanted.kinds:
        return False
    return (
        (wanted.at_least is None or value >= wanted.at_least)
        and (wanted.above is None or value > wanted.above)
        and (wanted.at_most is None or value <= wanted.at_most)
        and (wanted.below is None or value < wanted.below)
    )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
