"""What each finding that a command can end with says, and its way out, as far as the source has the words.

Knows how findings are made in the source: a call with an id, a message and a fix, which may be handed in by a caller,
or a check of the machine with an id, what was found and a fix.
Does not know which definitions a command reaches (raised), nor what an expression says (words).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from titancli.pages.raised import Scope, reached
from titancli.pages.words import Function, Words, function_around, parameters

_ID = re.compile(r"[A-Z]\d{3}")
# What the state of a check becomes when a launch says it.
_SEVERITIES = ("error", "warning")
_STATES = {"wrong": ("error",), "doubtful": ("warning",)}
_NAMELESS = re.compile(r"<\.\.\.>")


@dataclass(slots=True)
class Told:
    """What is told under one id: whether as errors or warnings, its messages and its fixes."""

    severities: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    fixes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Report:
    """A call that makes a finding."""

    rule: str
    severities: tuple[str, ...]
    message: Words | None
    fix: Words | None


@cache
def said(module: str, name: str) -> dict[str, Told]:
    """What a call of `module.name` can report, by id, sorted."""
    scopes = reached(module, name)
    waiting = [made for scope in scopes for made in _reports(scope)]
    seen: set[tuple[str, Function]] = set()
    found: dict[str, Told] = {}
    for made in waiting:
        told = found.setdefault(made.rule, Told())
        _add(told.severities, made.severities)
        _add(told.messages, _texts(made.message))
        _add(told.fixes, _texts(made.fix))
        around = next((each.function for each in (made.message, made.fix) if each and each.parameter), None)
        if around is not None and (made.rule, around) not in seen:
            seen.add((made.rule, around))
            waiting += _handed_in(made, around, scopes)
    return dict(sorted(found.items()))


@cache
def _texts(words: Words | None) -> tuple[str, ...]:
    """What words can say; not what leaves all but a word to the place."""
    return () if words is None else tuple(text for text in words.texts() if len(_NAMELESS.sub("", text).split()) > 1)


def _add(kept: list[str], more: Sequence[str]) -> None:
    kept += [text for text in dict.fromkeys(more) if text not in kept]


@cache
def _reports(scope: Scope) -> tuple[_Report, ...]:
    """The calls of a definition that name an id."""
    found: list[_Report] = []
    for call in _calls(scope):
        named = {each.arg: each.value for each in call.keywords if each.arg}
        rule = next((id_ for word in (*call.args, named.get("rule")) if (id_ := _id(word))), "")
        if not rule:
            continue
        given = _given(call, scope, _called(call, scope))
        message = given.get("message") or given.get("found")
        found.append(_Report(rule, _severities(call, scope), message, given.get("fix")))
    return tuple(found)


def _id(word: ast.expr | None) -> str:
    """The id that a word is; empty for any other."""
    match word:
        case ast.Constant(value=str(text)) if _ID.fullmatch(text):
            return text
    return ""


@cache
def _calls(scope: Scope) -> tuple[ast.Call, ...]:
    calls = (part for part in ast.walk(scope.node) if isinstance(part, ast.Call))
    return tuple(sorted(calls, key=lambda call: (call.lineno, call.col_offset)))


def _called(call: ast.Call, scope: Scope) -> Function | None:
    """The function of titan's that is called."""
    found = scope.leads_to(call.func)
    return found.node if found is not None and isinstance(found.node, ast.FunctionDef) else None


def _given(call: ast.Call, scope: Scope, function: Function | None) -> dict[str, Words]:
    """What a call hands in, by the name of the parameter."""
    around = function_around(scope.node, call.lineno)
    values = {each.arg: Words(each.value, scope, around, call.lineno) for each in call.keywords if each.arg}
    if function is None:
        return values
    names = [name for name in parameters(function) if name != "self"]
    places: list[Words] = []
    for each in call.args:
        if isinstance(each, ast.Starred):
            # A pair: only messages and their fixes come from elsewhere together.
            places += [Words(each.value, scope, around, call.lineno, item) for item in (0, 1)]
        else:
            places.append(Words(each, scope, around, call.lineno))
    return dict(zip(names, places, strict=False)) | values


def _severities(call: ast.Call, scope: Scope) -> tuple[str, ...]:
    """Said by the call, by default, or in what is called; and to what the function around turns it."""
    function, around = _called(call, scope), function_around(scope.node, call.lineno)
    state = next((each.value for each in call.keywords if each.arg == "state"), None)
    if state is not None:
        return _STATES.get(str(state.value) if isinstance(state, ast.Constant) else "", _SEVERITIES)
    if any(each.arg == "severity" and _is_asked_for(each.value, around) for each in call.keywords):
        return "error", "warning"
    stated = [_severity(call)] if _severity(call) else []
    if not stated and function is not None:
        default = parameters(function).get("severity")
        inside = (_severity(part) for part in ast.walk(function) if isinstance(part, ast.Call))
        stated = [str(default.value)] if isinstance(default, ast.Constant) else [each for each in inside if each]
    turned = [] if around is None else [_severity(part) for part in ast.walk(around) if _is_replace(part)]
    return tuple(dict.fromkeys(each for each in (*stated, *turned) if each))


def _is_asked_for(value: ast.expr, function: Function | None) -> bool:
    """Whether the caller of the function around says it, as it has to."""
    return isinstance(value, ast.Name) and function is not None and parameters(function).get(value.id, value) is None


def _is_replace(part: ast.AST) -> bool:
    return isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "replace"


def _severity(call: ast.AST) -> str | None:
    words = call.keywords if isinstance(call, ast.Call) else []
    found = (each.value for each in words if each.arg == "severity")
    return next((str(each.value) for each in found if isinstance(each, ast.Constant)), None)


def _handed_in(made: _Report, function: Function, scopes: Sequence[Scope]) -> Iterator[_Report]:
    """The same report at each call of the function around it, with the words that are handed in there."""
    for scope in scopes:
        for call in _calls(scope):
            if not _is_call_of(function, call, scope):
                continue
            given = _given(call, scope, function)
            message, fix = (_at_caller(words, given, function) for words in (made.message, made.fix))
            yield replace(made, message=message, fix=fix)


def _is_call_of(function: Function, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is one of a function, or of a method of its name."""
    if _called(call, scope) is function:
        return True
    is_method = next(iter(parameters(function)), "") == "self"
    return is_method and isinstance(call.func, ast.Attribute) and call.func.attr == function.name


def _at_caller(words: Words | None, given: dict[str, Words], function: Function) -> Words | None:
    if words is None or words.parameter is None:
        return words
    default = parameters(function).get(words.parameter)
    return given.get(words.parameter) or (None if default is None else replace(words, value=default))
