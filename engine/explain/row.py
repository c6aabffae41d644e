"""The form of an explanation: one row a key, with a function for each part that the key has.

Knows the form, and costs found by planning again. Does not know any key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.explain.answer import Cost, Derived, Figure
from engine.explain.known import Edit, Known, step_ms, used_bytes
from engine.explain.words import difference
from engine.keys import value_of

NO_TIES = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is said of a key beside its value and its text; a part that it lacks is left out.

    `edits` are changes that may be worth it: the best of them is offered.
    """

    derived: Callable[[Known], Derived | None] = lambda _: None
    figures: Callable[[Known], Iterable[Figure]] = lambda _: ()
    ties: Callable[[Known], str] = lambda _: NO_TIES
    cost: Callable[[Known], Cost | None] | None = None
    edits: Callable[[Known], Iterable[Edit]] = lambda _: ()


def against(known: Known, edit: Edit, words: str) -> Cost:
    """What the config costs beside its neighbour with an edit, which `words` name; unknown where a rule refuses that.

    The words end in what the neighbour would have more or less.
    """
    other = known.again(edit)
    if isinstance(other, str):
        return Cost(None, None, f"not known: {words} is refused by {other}")
    plan = known.plan
    bytes_more = used_bytes(plan) - used_bytes(other)
    here_ms, there_ms = step_ms(plan), step_ms(other)
    ms_more = None if here_ms is None or there_ms is None else here_ms - there_ms
    if not bytes_more and not ms_more:
        return Cost(bytes_more, ms_more, f"{words}: no difference")
    # The signs turn: what the key costs, the neighbour saves.
    has = difference(-bytes_more, None if ms_more is None else -ms_more)
    return Cost(bytes_more, ms_more, f"{words}: that would be {has}")


def free(text: str) -> Cost:
    """No cost, and why."""
    return Cost(0, 0.0, text)


def switch(key: str, *, on: Callable[[Known], Edit] | None = None, off: Callable[[Known], Edit] | None = None) -> Row:
    """A switch: on, it costs what it differs from off; off, switching it on may be worth it."""

    def cost(known: Known) -> Cost:
        if not value_of(known.config, key):
            return free("off: nothing")
        return against(known, {key: False} | (off(known) if off is not None else {}), "without it")

    def edits(known: Known) -> Iterable[Edit]:
        if value_of(known.config, key):
            return [{key: False} | (off(known) if off is not None else {})]
        return [{key: True} | (on(known) if on is not None else {})]

    return Row(cost=cost, edits=edits)


def choice(key: str, usual: Any, *others: Any) -> Row:
    """A choice among few: it costs what it differs from the usual one, and the usual one from the first other."""

    def cost(known: Known) -> Cost:
        value = value_of(known.base, key)
        reference = others[0] if value == usual else usual
        return against(known, {key: reference}, f"against {reference}")

    def edits(known: Known) -> Iterable[Edit]:
        return [{key: other} for other in (usual, *others) if other != value_of(known.base, key)]

    return Row(cost=cost, edits=edits)
