"""Why a value cannot stand at a key, in the user's words (rule S102).

Knows how values look to a person. Does not decide that a value is wrong: pydantic does.
"""

from __future__ import annotations

import datetime
from typing import Any

from engine.reading.nearest import nearest
from engine.reading.origins import Origin
from engine.reading.toml_text import toml_value
from engine.reading.wants import Want, fits, is_sound, want, why_unsound

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def complaint(key: str, value: Any, origin: Origin) -> tuple[str, str]:
    """Why this value cannot stand at this key, and what to write there: (message, fix)."""
    return complaint_about(want(key), key, value, in_toml=origin.kind in ("file", "preset"))


def complaint_about(wanted: Want, key: str, value: Any, *, in_toml: bool) -> tuple[str, str]:
    """`complaint` for a key of any tool that wants this."""
    name = key.rpartition(".")[2]
    return f"{_what_is_given(wanted, value)}; {name} wants {wanted.words}", _way_out(wanted, value, in_toml=in_toml)


def shown(value: Any, width: int = 40) -> str:
    """A value as TOML writes it, cut to what fits in a line."""
    text = toml_value(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _what_is_given(wanted: Want, value: Any) -> str:
    match value:
        case bool():
            return f"{shown(value)} is a boolean"
        case int() | float():
            return _which_number(wanted, value)
        case "":
            return "nothing is given"
        case str() | list() | dict() if not is_sound(value):
            return f"{shown(value)} holds {why_unsound(value)}"
        case str() if wanted.choices:
            return f"{shown(value)} is not one of the choices"
        case str():
            return f"{shown(value)} is text"
        case list() if "list" in wanted.kinds:
            return f"the list holds {shown(next(item for item in value if not isinstance(item, str)))}"
        case list():
            return f"{shown(value)} is a list"
        case dict() if "table" in wanted.kinds:
            return f"the table is {shown(value)}"
        case dict():
            return "a table is given"
        case datetime.date() | datetime.time():
            return f"{value} is a date or time"
    raise AssertionError(f"TOML has no values like {value!r}")


def _which_number(wanted: Want, value: float) -> str:
    if not wanted.kinds & {"whole", "number"}:
        return f"{shown(value)} is a number"
    if not is_sound(value):
        return f"{shown(value)} is more than 64 bits can hold"
    if value != value:
        return "nan is not a number"
    if isinstance(value, float) and "number" not in wanted.kinds:
        return f"{shown(value)} is not written as a whole number"
    low = (wanted.at_least is not None and value < wanted.at_least) or (
        wanted.above is not None and value <= wanted.above
    )
    return f"{shown(value)} is too small" if low else f"{shown(value)} is too large"


def _way_out(wanted: Want, value: Any, *, in_toml: bool) -> str:
    """The fix: the value in the right form where it can be read, else what is wanted."""
    read = _meant(wanted, value)
    near = nearest(value, wanted.choices) if isinstance(value, str) else None
    if near:
        return f"write {toml_value(near) if in_toml else near}"
    if read is not None and fits(wanted, read):
        return f"write {shown(read)}" + (", without quotes" if in_toml and isinstance(value, str) else "")
    if "list" in wanted.kinds:
        return f"write {shown([value])}" if isinstance(value, str) else 'write a list: ["one", "two"]'
    if "table" in wanted.kinds:
        return 'write a table: {"one" = 1.0, "two" = 0.5}'
    if "text" in wanted.kinds and not isinstance(value, str | list | dict):
        return f'put it in quotes: "{shown(value)}"'
    return f"set it to {wanted.words}"


def _meant(wanted: Want, value: Any) -> bool | float | None:
    """What a person most likely meant by a value of another kind: `"8"`, `08`, `.5`, `True`, `1`, `8.0`."""
    if isinstance(value, float) and value.is_integer() and "number" not in wanted.kinds:
        return int(value)
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    if "boolean" in wanted.kinds:
        return _BOOLEANS.get(str(value).strip().lower())
    for read in (int, float):
        try:
            return read(value)
        except (ValueError, OverflowError):
            continue
    return None
