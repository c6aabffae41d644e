"""Which findings a command can end with, read from the source: what it calls, and the ids that stand there.

Knows names, imports and calls of titan's own modules, as they are written. Does not run anything, and does not see what
is passed on as a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ID = re.compile(r"[A-Z]\d{3}")
_OURS = ("engine", "titancli")
_Place = tuple[str, str]
"""A module and one of its names."""


@dataclass(frozen=True, slots=True)
class _Module:
    """The names that a module defines, and those that it imports, with where they come from."""

    defined: Mapping[str, ast.stmt]
    imported: Mapping[str, _Place]


def raised(module: str, name: str) -> dict[str, tuple[str, ...]]:
    """The ids that a call of `module.name` can report, sorted, each with what it says; places are `<so>`."""
    found: dict[str, list[str]] = {}
    for node in _reached((module, name)):
        above = 0
        for rule, message, line in sorted(_reports(node), key=lambda report: report[2]):
            found.setdefault(rule, []).extend(_texts(message, _Lines(node, above, line)))
            above = line
    return {rule: tuple(dict.fromkeys(found[rule])) for rule in sorted(found)}


def _reached(start: _Place) -> Iterator[ast.stmt]:
    """The definition at a place, and all that it names, directly or through others."""
    seen: set[_Place] = set()
    waiting = [start]
    while waiting:
        place = _defined_at(waiting.pop())
        if place is None or place in seen:
            continue
        seen.add(place)
        module = _module(place[0])
        node = module.defined[place[1]]
        yield node
        known = {**{name: (place[0], name) for name in module.defined}, **module.imported, **dict(_imports(node))}
        waiting += _named(node, known)


def _named(node: ast.stmt, known: Mapping[str, _Place]) -> Iterator[_Place]:
    """The places that a piece of code names: `name`, or `module.name`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in known:
            yield known[part.id]
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in known:
            module, name = known[part.value.id]
            yield f"{module}.{name}", part.attr


def _defined_at(place: _Place) -> _Place | None:
    """Where a name is defined that may only be passed on there; None where that is not in titan."""
    module, name = place
    while _is_ours(module):
        found = _module(module)
        if name in found.defined:
            return module, name
        if name not in found.imported:
            return None
        onward = found.imported[name]
        if onward == (module, name):
            return None
        module, name = onward
    return None


def _is_ours(module: str) -> bool:
    if module.partition(".")[0] not in _OURS:
        return False
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@cache
def _module(name: str) -> _Module:
    spec = find_spec(name)
    assert spec is not None, f"there is no module {name}"
    assert spec.origin is not None, f"{name} has no source"
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined[node.target.id] = node
    return _Module(defined, dict(_imports(*(node for node in tree.body if isinstance(node, ast.ImportFrom)))))


def _imports(*nodes: ast.stmt) -> Iterator[tuple[str, _Place]]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and part.module:
                yield from ((each.asname or each.name, (part.module, each.name)) for each in part.names)


# ── what is said ──


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a definition from one report to the next: what a name is given there, the next one says."""

    node: ast.stmt
    above: int
    last: int

    def given(self, name: str) -> Iterator[ast.expr]:
        """The values that a name is given in these lines."""
        for part in ast.walk(self.node):
            if not isinstance(part, ast.Assign) or not self.above < part.lineno <= self.last:
                continue
            if any(isinstance(target, ast.Name) and target.id == name for target in part.targets):
                yield part.value


def _reports(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None, int]]:
    """The calls that name an id, with what they say (the word after it, or `message`) and their line."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call):
            continue
        named = {each.arg: each.value for each in part.keywords if each.arg}
        words = [*part.args]
        if "rule" in named:
            words.insert(0, named["rule"])
        for place, word in enumerate(words):
            if isinstance(word, ast.Constant) and isinstance(word.value, str) and _ID.fullmatch(word.value):
                after = words[place + 1] if place + 1 < len(words) else None
                yield word.value, named.get("message", after), part.lineno


def _texts(message: ast.expr | None, lines: _Lines) -> list[str]:
    """What a message can say: a text, one of two, or what its name was given."""
    match message:
        case ast.Constant(value=str(text)) if " " in text:
            return [text]
        case ast.JoinedStr():
            return ["".join(map(_piece, message.values))]
        case ast.IfExp():
            return [*_texts(message.body, lines), *_texts(message.orelse, lines)]
        case ast.Name():
            return [text for value in lines.given(message.id) for text in _texts(value, lines)]
    return []


def _piece(part: ast.expr) -> str:
    """A piece of a text; the place of a value is named after it."""
    match part:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return f"<{name}>"
        case _:
            return "<...>"
