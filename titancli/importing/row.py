"""One key of a torchtitan config: what it holds there, and what becomes of it here.

Knows the form of a row and of its outcomes. Does not know any key (rows_*), nor how a file is read (source).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.reading.moved_keys import DROPPED, DROPPED_SECTIONS

Kind = Literal["whole", "number", "boolean", "text", "word", "texts", "lists", "any"]
"""What a key holds; a `word` may be written as a number, `texts` as words between commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a torchtitan file says: values by the names of 0.2, with its defaults for what is not written.

    `written` are the keys that stand in the file, `over` the titan keys that flags have set. `sharded` is whether
    torchtitan shards weights over more than one rank, on the GPUs that the run is imported for.
    """

    values: Mapping[str, Any]
    written: frozenset[str]
    over: frozenset[str]
    sharded: bool = True

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


@dataclass(frozen=True, slots=True)
class Became:
    """Titan keys that a key turns into, and what is to be said of it; no note: it means what it meant."""

    values: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A key is left out, and why that changes nothing, or what titan does instead."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A key asks for what titan cannot do: why, and the way out."""

    reason: str
    fix: str


Outcome: TypeAlias = Became | Gone | Refused
Turn: TypeAlias = Callable[[Given], Outcome]
Switch: TypeAlias = Callable[[Given], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A key of torchtitan with its kind, its default there, the titan keys `to` which it goes, and how.

    `matters`: whether torchtitan looks at the key at all; only then is its default written where titan's differs.
    `keeps_place`: the default names a place or a title, and titan's own is as good.
    """

    key: str
    kind: Kind
    default: Any
    turn: Turn
    to: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    matters: Switch
    keeps_place: bool = False


def always(_: Given) -> bool:
    """The switch of keys that always matter."""
    return True


def on(key: str) -> Switch:
    """Whether a boolean of the file is true."""
    return lambda given: given[key] is True


def piped(given: Given) -> bool:
    """Whether there is a pipeline."""
    return int(given["parallelism.pipeline_parallel_degree"]) > 1


def same(
    key: str,
    kind: Kind,
    default: Any,
    *,
    to: str = "",
    choices: Sequence[str] = (),
    matters: Switch = always,
    keeps_place: bool = False,
) -> Row:
    """A key that means here what it means there, under its own name or as `to`."""
    name = to or key
    return Row(
        key=key,
        kind=kind,
        default=default,
        turn=lambda given: Became({} if given[key] is None else {name: given[key]}),
        to=(name,),
        choices=tuple(choices),
        matters=matters,
        keeps_place=keeps_place,
    )


def turned(
    key: str,
    kind: Kind,
    default: Any,
    turn: Turn,
    *,
    to: Sequence[str] = (),
    choices: Sequence[str] = (),
    matters: Switch = always,
) -> Row:
    """A key whose value is read together with others, or is written in another way."""
    names = tuple(to)
    return Row(key=key, kind=kind, default=default, turn=turn, to=names, choices=tuple(choices), matters=matters)


def dropped(key: str, kind: Kind, default: Any, *, reason: str = "", choices: Sequence[str] = ()) -> Row:
    """A key without a counterpart, whose value changes nothing that titan computes."""
    why = reason or dropped_reason(key)
    return turned(key, kind, default, lambda _: Gone(why), choices=choices)


def refused(
    key: str,
    kind: Kind,
    default: Any,
    reason: str,
    fix: str,
    *,
    matters: Switch = always,
    off: str = "",
    choices: Sequence[str] = (),
) -> Row:
    """A key that is left out at its default, or where nothing looks at it, and refused with any other value."""

    def turn(given: Given) -> Outcome:
        if given[key] == default:
            return Gone(f"{reason}; it is at its default")
        return Refused(reason, fix) if matters(given) else Gone(off or reason)

    return turned(key, kind, default, turn, choices=choices, matters=matters)


def dropped_reason(key: str) -> str:
    """Why titan has no such key, in the words of the list of old keys; without the advice to remove it."""
    section, _, name = key.rpartition(".")
    home = {"quantize.linear.float8": "float8", "quantize.linear.mx": "mx"}.get(section, section)
    text = DROPPED.get(key) or DROPPED.get(f"{home}.{name}")
    if text is None:
        gone = next((old for old in DROPPED_SECTIONS if key.startswith(f"{old}.")), None)
        assert gone is not None, f"nothing says why {key} is dropped"
        text = DROPPED_SECTIONS[gone]
    return text.removeprefix("remove it: ").removeprefix("remove it, and ")
