"""Which findings a command can end with, read from the source: what it calls, and the ids that stand there.

Knows names, imports and calls of titan's own modules, as they are written. Does not run anything, and does not see what
is passed on as a value, nor what a finding says (said).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

_OURS = ("engine", "titancli")
Place: TypeAlias = tuple[str, str]
"""A module and one of its names."""


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A definition at the top of a module, and where each name that it uses comes from."""

    place: Place
    node: ast.stmt
    known: Mapping[str, Place]

    def leads_to(self, used: ast.expr) -> Scope | None:
        """The definition that `name` or `module.name` means here; None where it is not titan's."""
        place = _place(used, self.known)
        return None if place is None else scope_at(place)


@dataclass(frozen=True, slots=True)
class _Module:
    """The names that a module defines, and those that it imports, with where they come from."""

    defined: Mapping[str, ast.stmt]
    imported: Mapping[str, Place]


@cache
def reached(module: str, name: str) -> tuple[Scope, ...]:
    """The definition of `module.name`, and all that it names, directly or through others."""
    found: dict[Place, Scope] = {}
    waiting: list[Place] = [(module, name)]
    while waiting:
        scope = scope_at(waiting.pop())
        if scope is not None and scope.place not in found:
            found[scope.place] = scope
            waiting += _named(scope.place)
    return tuple(found.values())


def scope_at(place: Place) -> Scope | None:
    """The definition of a name that may only be passed on at a place; None where that is not in titan."""
    defined = _defined_at(place)
    return None if defined is None else _scope(defined)


@cache
def _scope(place: Place) -> Scope:
    module, name = place
    found = _module(module)
    assert found is not None, f"there is no module {module}"
    node = found.defined[name]
    here = {each: (module, each) for each in found.defined}
    return Scope(place, node, {**here, **found.imported, **dict(_imports(node))})


@cache
def _named(place: Place) -> tuple[Place, ...]:
    """The places that a definition names."""
    scope = _scope(place)
    used = (part for part in ast.walk(scope.node) if isinstance(part, ast.Name | ast.Attribute))
    return tuple(dict.fromkeys(found for part in used if (found := _place(part, scope.known)) is not None))


def _place(used: ast.expr, known: Mapping[str, Place]) -> Place | None:
    match used:
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in known:
            return ".".join(known[name]), attr
    return None


def _defined_at(place: Place) -> Place | None:
    """Where a name is defined that may only be passed on there."""
    module, name = place
    while (found := _module(module)) is not None:
        if name in found.defined:
            return module, name
        onward = found.imported.get(name)
        if onward is None or onward == (module, name):
            return None
        module, name = onward
    return None


@cache
def _module(name: str) -> _Module | None:
    """A module of titan's, which is not imported for it; None for another name."""
    top, *parts = name.split(".")
    if top not in _OURS:
        return None
    below = [Path(folder, *parts) for folder in importlib.import_module(top).__path__]
    files = [file for path in below for file in (path.with_suffix(".py"), path / "__init__.py")]
    source = next((file for file in files if file.is_file()), None)
    return None if source is None else _read(ast.parse(source.read_text("utf-8")))


def _read(tree: ast.Module) -> _Module:
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined[node.target.id] = node
    return _Module(defined, dict(_imports(*(node for node in tree.body if isinstance(node, ast.ImportFrom)))))


def _imports(*nodes: ast.stmt) -> Iterator[tuple[str, Place]]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and part.module:
                yield from ((each.asname or each.name, (part.module, each.name)) for each in part.names)
