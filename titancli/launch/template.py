"""The files beside this one that scripts and manifests are made from.

Knows `{{name}}`: a value inside a line; and alone on a line, which becomes as many lines as it has values, all as far
in as it stood. Does not know what the files are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

Value = str | Sequence[str]

_NAME = re.compile(r"\{\{(\w+)\}\}")
_ALONE = re.compile(r"( *)\{\{(\w+)\}\}")


def filled(name: str, values: Mapping[str, Value]) -> str:
    """The text of a template with all of the values in it."""
    text = files("titancli.launch").joinpath("templates", name).read_text("utf-8")
    named = set(_NAME.findall(text))
    assert named == values.keys(), f"{name} names other values than it is given: {sorted(named ^ values.keys())}"
    return "".join(f"{line}\n" for line in _lines(text, values))


def _lines(text: str, values: Mapping[str, Value]) -> Iterator[str]:
    for line in text.splitlines():
        alone = _ALONE.fullmatch(line)
        value = None if alone is None else values[alone[2]]
        if alone is not None and value is not None and not isinstance(value, str):
            yield from (f"{alone[1]}{each}".rstrip() for each in value)
        else:
            yield _NAME.sub(lambda place: _one(values[place[1]]), line)


def _one(value: Value) -> str:
    assert isinstance(value, str), "several values stand on lines of their own"
    return value
