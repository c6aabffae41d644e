"""What an expression of the source says, as far as the source has the words.

Knows texts, the names that stand for them and the functions that return them. What is not known before the code runs is
named in angle brackets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from titancli.pages.raised import Scope

Function: TypeAlias = ast.FunctionDef
_Value: TypeAlias = tuple[ast.expr, int | None]
"""An expression, or one item of the tuple that it is."""
_DEEPEST = 6
_NOT_KNOWN = "<...>"


@dataclass(frozen=True, slots=True)
class Words:
    """An expression at its line of a definition, in the function around it; `item` of it, where it is a tuple."""

    value: ast.expr
    scope: Scope
    function: Function | None
    line: int
    item: int | None = None

    @property
    def parameter(self) -> str | None:
        """The parameter of the function whose caller says what this is; None where it is said here."""
        if not isinstance(self.value, ast.Name) or self.function is None or self._given(self.value.id):
            return None
        return self.value.id if self.value.id in parameters(self.function) else None

    def texts(self, depth: int = 0) -> list[str]:
        """All that it can say; none where that is not known, and at the end of a long way."""
        return [] if depth > _DEEPEST else list(dict.fromkeys(self._texts(depth + 1)))

    def _texts(self, depth: int) -> Iterator[str]:
        match self.value:
            case ast.Constant(value=str(text)) if " " in text:
                yield text
            case ast.JoinedStr():
                yield "".join(self._piece(part, depth) for part in self.value.values)
            case ast.IfExp(body=first, orelse=second):
                yield from (text for each in (first, second) for text in self._of(each).texts(depth))
            case ast.BoolOp(values=values):
                yield from (text for each in values for text in self._of(each).texts(depth))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                starts, ends = (self._of(each).texts(depth) or [self._piece(each, depth)] for each in (left, right))
                yield from (start + end for start in starts for end in ends)
            case ast.Tuple(elts=items) if self.item is not None:
                yield from replace(self, value=items[self.item], item=None).texts(depth)
            case ast.Name(id=name):
                yield from (text for each in self._meanings(name) for text in each.texts(depth))
            case ast.Call(func=function):
                yield from (text for each in self._returned(function) for text in each.texts(depth))

    def _of(self, part: ast.expr) -> Words:
        return replace(self, value=part)

    def _meanings(self, name: str) -> Iterator[Words]:
        """What a name was given before this line, or in its module."""
        given = self._given(name)
        for value, item in given:
            yield replace(self, value=value, item=self.item if item is None else item, line=value.lineno)
        scope = None if given else self.scope.leads_to(ast.Name(name))
        if scope is not None and isinstance(scope.node, ast.Assign | ast.AnnAssign) and scope.node.value is not None:
            yield Words(scope.node.value, scope, None, scope.node.lineno, self.item)

    def _given(self, name: str) -> list[_Value]:
        return [] if self.function is None else _reaching(self.function.body, name, self.line, [])

    def _returned(self, function: ast.expr) -> Iterator[Words]:
        """What a function of titan's can return."""
        scope = self.scope.leads_to(function)
        if scope is None or not isinstance(scope.node, ast.FunctionDef):
            return
        for part in ast.walk(scope.node):
            if isinstance(part, ast.Return) and part.value is not None:
                yield Words(part.value, scope, function_around(scope.node, part.lineno), part.lineno, self.item)

    def _piece(self, part: ast.expr, depth: int) -> str:
        """A piece of a text; the place of a value is named after it."""
        match part:
            case ast.Constant(value=text):
                return str(text)
            case ast.FormattedValue(value=value) | ast.BoolOp(values=[value, *_]):
                return self._piece(value, depth)
            case ast.Name(id=name) if name.isupper():
                texts = self._of(part).texts(depth)
                return texts[0] if texts else f"<{name.strip('_').lower()}>"
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return f"<{name.lower()}>"
            case ast.Call(func=ast.Name(id=name)) if name.startswith("_"):
                return f"<{name.strip('_').replace('_', ' ')}>"
            case ast.Call(args=[ast.Name() | ast.Attribute() as first, *_]):
                return self._piece(first, depth)
        return _NOT_KNOWN


@cache
def parameters(function: Function) -> dict[str, ast.expr | None]:
    """The parameters of a function in order, with their defaults."""
    places = [*function.args.posonlyargs, *function.args.args]
    defaults: list[ast.expr | None] = [*function.args.defaults]
    missing: list[ast.expr | None] = [None] * (len(places) - len(defaults))
    found = {each.arg: default for each, default in zip(places, missing + defaults, strict=True)}
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found | {each.arg: default for each, default in named}


@cache
def function_around(node: ast.AST, line: int) -> Function | None:
    """The innermost function of a definition that a line is in."""
    found = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.FunctionDef) and part.lineno <= line <= (part.end_lineno or line)
    ]
    return max(found, key=lambda each: each.lineno, default=None)


def _reaching(body: Sequence[ast.stmt], name: str, line: int, before: list[_Value]) -> list[_Value]:
    """What a name can hold at a line, after the statements that come before it; `before` is what it held until here."""
    held = before
    for statement in body:
        if statement.lineno >= line:
            break
        branches = _branches(statement)
        holding = next((each for each in branches if each and each[0].lineno <= line <= _end(each)), None)
        if holding is not None:
            return _reaching(holding, name, line, held)
        if branches:
            ends = [_reaching(each, name, line, held) for each in branches if not _leaves(each)]
            held = [value for end in ends for value in end]
            held = list({id(value): (value, item) for value, item in held}.values())
        else:
            held = _after(statement, name, held)
    return held


def _branches(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The ways through a statement; what need not be gone through has an empty one too."""
    match statement:
        case ast.If(body=body, orelse=orelse):
            return [body, orelse]
        case ast.For(body=body) | ast.While(body=body):
            return [body, []]
        case ast.With(body=body):
            return [body]
        case ast.Try(body=body, handlers=handlers, orelse=orelse):
            return [[*body, *orelse], *(each.body for each in handlers)]
        case ast.Match(cases=cases):
            return [[], *(each.body for each in cases)]
    return []


def _end(body: Sequence[ast.stmt]) -> int:
    return body[-1].end_lineno or body[-1].lineno


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _after(statement: ast.stmt, name: str, held: list[_Value]) -> list[_Value]:
    """What a name holds after a statement."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name and value is not None:
            return [(value, None)]
        case ast.AugAssign(target=ast.Name(id=target), value=more) if target == name:
            return [_longer(before, more, statement) for before in held]
        case ast.Assign(targets=[ast.Name(id=target), *_], value=value) if target == name:
            return [(value, None)]
        case ast.Assign(targets=[ast.Tuple(elts=elements), *_], value=value):
            names = [each.id if isinstance(each, ast.Name) else "" for each in elements]
            return [(value, names.index(name))] if name in names else held
    return held


def _longer(before: _Value, more: ast.expr, statement: ast.stmt) -> _Value:
    """A value with more behind it; what a function returns one of several of stays as it is."""
    value, item = before
    if item is not None:
        if not isinstance(value, ast.Tuple):
            return before
        value = value.elts[item]
    return ast.copy_location(ast.BinOp(value, ast.Add(), more), statement), None
