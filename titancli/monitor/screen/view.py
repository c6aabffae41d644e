"""How somebody looks at a run: which panels, in which order, from which row on, and what a key changes of it.

Knows keys by name. Does not know terminals (keys) nor what is drawn (drawing).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from titancli.monitor.screen.panels_ranks import ORDERS, Order

Shows: TypeAlias = Literal["panels", "alerts", "help"]

KEYS: tuple[tuple[str, str], ...] = (
    ("q, F10, Ctrl-C", "leave; the run goes on"),
    ("up, down, k, j", "a row up or down"),
    ("PgUp, PgDn, p, n", "a page back or on"),
    ("Home, End, g, G", "the first row, the last row"),
    ("s, S", "the next or the last order: worst, rank, memory, idle, behind"),
    ("r, I", "turn the order around"),
    ("M, N, W", "order by memory, by number, worst first"),
    ("a", "all alerts with their fixes, and back"),
    ("space", "hold the picture, and let it go on"),
    ("Ctrl-L, F5", "draw it anew"),
    ("?, h, F1", "this page, and back"),
)
"""Keys, and what they do."""
_ORDER_KEYS: dict[str, Order] = {"M": "memory", "N": "rank", "W": "worst"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown: `top` is the first row, `is_held` that new events wait."""

    shows: Shows = "panels"
    order: Order = "worst"
    is_reversed: bool = False
    top: int = 0
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What of something long is on the screen: rows from `first` to `last`, from 0, of `count`."""

    first: int = 0
    last: int = 0
    count: int = 0


def after(view: View, keys: Iterable[str], extent: Extent) -> View | None:
    """The view after several keys, which were pressed faster than it is drawn; None where one is to leave with."""
    for key in keys:
        moved = pressed(view, key, extent)
        if moved is None:
            return None
        page = extent.last - extent.first
        extent = replace(extent, first=moved.top, last=moved.top + page)
        view = moved
    return view


def pressed(view: View, key: str, extent: Extent) -> View | None:
    """The view after a key; None where it is one to leave with. A key that means nothing changes nothing."""
    match key:
        case "q" | "Q" | "f10":
            return None
        case "esc" if view.shows != "panels":
            return replace(view, shows="panels", top=0)
        case "?" | "h" | "f1":
            return _shown(view, "help")
        case "a" | "A":
            return _shown(view, "alerts")
        case " " | "Z":
            return replace(view, is_held=not view.is_held)
        case "s" | "." | ">" | "f6" if view.shows == "panels":
            return _ordered(view, 1)
        case "S" | "," | "<" if view.shows == "panels":
            return _ordered(view, -1)
        case "r" | "R" | "I" | "/" if view.shows == "panels":
            return replace(view, is_reversed=not view.is_reversed, top=0)
        case "M" | "N" | "W" if view.shows == "panels":
            return replace(view, order=_ORDER_KEYS[key], is_reversed=False, top=0)
        case _:
            return replace(view, top=_moved(key, extent))


def _shown(view: View, what: Shows) -> View:
    return replace(view, shows="panels" if view.shows == what else what, top=0)


def _ordered(view: View, by: int) -> View:
    order = ORDERS[(ORDERS.index(view.order) + by) % len(ORDERS)]
    return replace(view, order=order, is_reversed=False, top=0)


def _moved(key: str, extent: Extent) -> int:
    """The first row after a key; the last page is a whole one."""
    page = max(1, extent.last - extent.first)
    by = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "p": -page, "pgdn": page, "n": page}.get(key, 0)
    by = {"home": -extent.count, "g": -extent.count, "end": extent.count, "G": extent.count}.get(key, by)
    return max(0, min(extent.first + by, extent.count - page))
