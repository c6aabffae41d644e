"""What a key wants, in words, and what a wrong value is, in words (rule S102).

Knows the types of config.py and how a word of a command line or of the environment is read for
each. Does not check values: pydantic does, and this says why it refused.
"""

from __future__ import annotations

import datetime
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
            parts.append(f"a list of {_quoted(self.choices)}" if self.choices else "a list of text")
        elif len(self.choices) == 1:
            parts.append(f'"{self.choices[0]}"')
        elif self.choices:
            parts.append(f"one of {_quoted(self.choices)}")
        if "table" in self.kinds:
            parts.append(f"a table of names with numbers{self._range()}")
        return ", or ".join(parts)

    def _range(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f" from {_number(self.at_least)} to {_number(self.at_most)}"
        low = f" of at least {_number(self.at_least)}" if self.at_least is not None else ""
        low = low or (f" above {_number(self.above)}" if self.above is not None else "")
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
        return Want(frozenset({"list"}), _of_type(arguments[0]).choices)
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
        items = _read_toml(f"[{word}]")
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return items
        if not word.lstrip().startswith("["):
            return [item.strip() for item in word.split(",") if item.strip()]
    return word if value is None else value


def _read_toml(word: str) -> Any:
    """A word as one TOML value; None where it is none."""
    try:
        table = tomllib.loads(f"value = {word}")
    except (ValueError, RecursionError):
        return None
    return table["value"] if table.keys() == {"value"} else None


def complaint(key: str, value: Any) -> tuple[str, str]:
    """Why this value cannot stand at this key, and what to write: (message, fix)."""
    wanted, name = want(key), key.rpartition(".")[2]
    return f"{_what_is_given(wanted, value)}; {name} wants {wanted.words}", _way_out(wanted, value)


def _what_is_given(wanted: Want, value: Any) -> str:
    numeric = bool(wanted.kinds & {"whole", "number"})
    match value:
        case bool():
            return f"{shown(value)} is a boolean"
        case int() | float() if numeric and value != value:
            return "nan is not a number"
        case float() if "whole" in wanted.kinds and "number" not in wanted.kinds:
            return f"{shown(value)} is not written as a whole number"
        case int() | float() if numeric and abs(value) > 1e300:
            return f"{shown(value)} is too large"
        case int() | float() if numeric:
            too_small = (wanted.at_least is not None and value < wanted.at_least) or (
                wanted.above is not None and value <= wanted.above
            )
            return f"{shown(value)} is too small" if too_small else f"{shown(value)} is too large"
        case int() | float():
            return f"{shown(value)} is a number"
        case str() if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
            return "the value holds bytes that are not UTF-8 text"
        case str() if wanted.choices and "list" not in wanted.kinds:
            return f"{shown(value)} is not one of the choices"
        case str():
            return f"{shown(value)} is text"
        case list() if "list" in wanted.kinds:
            wrong = [
                item for item in value if not isinstance(item, str) or (wanted.choices and item not in wanted.choices)
            ]
            return f"the list holds {shown(wrong[0])}" if wrong else f"{shown(value)} is not right"
        case list():
            return f"{shown(value)} is a list"
        case dict() if "table" in wanted.kinds:
            return f"the table is {shown(value)}"
        case dict():
            return "a table is given"
        case datetime.date() | datetime.time():
            return f"{value} is a date or time"
    raise AssertionError(f"TOML has no values like {value!r}")


def _way_out(wanted: Want, value: Any) -> str:
    """The fix: the value in the right form where it can be read, else what is wanted."""
    if isinstance(value, str) and wanted.choices:
        near = nearest(value, wanted.choices)
        if near:
            return f'write "{near}"'
    if isinstance(value, str) and "list" in wanted.kinds:
        return (
            f'write a list: ["{value}"]'
            if not value.startswith("[")
            else "write a list of quoted texts, or names with commas"
        )
    if isinstance(value, str):
        read = _read_loosely(value)
        if fits(wanted, read):
            return f"write {shown(read)}, without quotes"
    if isinstance(value, float) and "whole" in wanted.kinds and value.is_integer() and fits(wanted, int(value)):
        return f"write {int(value)}"
    if not isinstance(value, str | list | dict) and "text" in wanted.kinds:
        return f'put it in quotes: "{shown(value)}"'
    return f"set it to {wanted.words}"


def fits(wanted: Want, value: Any) -> bool:
    """Whether a boolean or number stands within what is wanted."""
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


def _read_loosely(word: str) -> bool | int | float | None:
    """What a person most likely meant by a word that is no TOML value: `True`, `08`, `.5`."""
    booleans = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return booleans.get(word.strip().lower())


def nearest(word: str, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The name that a misspelled word most likely means: letter case and separators count for nothing."""
    import difflib  # only a mistake needs it

    by_plain = {plain(name): name for name in reversed(names)}
    found = difflib.get_close_matches(plain(word), by_plain, n=1, cutoff=cutoff)
    return by_plain[found[0]] if found else None


def plain(word: str) -> str:
    """A name without letter case, underscores and hyphens."""
    return word.lower().replace("_", "").replace("-", "")


def shown(value: Any, width: int = 40) -> str:
    """A value as TOML shows it, cut to what fits in a line."""
    match value:
        case bool():
            text = "true" if value else "false"
        case str():
            text = f'"{value}"'
        case list():
            text = "[" + ", ".join(shown(item) for item in value) + "]"
        case dict():
            text = "{" + ", ".join(f"{name} = {shown(item)}" for name, item in value.items()) + "}"
        case _:
            text = str(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _number(value: float) -> str:
    return f"{value:g}"
