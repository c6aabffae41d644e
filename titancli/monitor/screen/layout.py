"""Where panels stand on a screen of some size, and how many lines each has.

Knows sizes, what matters most, and what each panel would take. Does not know what stands in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Frames: TypeAlias = Literal["bare", "ruled", "boxed"]
"""What panels are told apart by: little at all, a line above each, or a box around each."""
_BOX_COLUMNS, _BOX_ROWS, _WIDE_BOX_ROWS = 80, 30, 26
_RULED_ROWS = 20
_WIDE_COLUMNS = 110
BOX_SIDES = 4
"""Columns that the sides of a box take, with the space inside."""
_OVERHEAD: dict[Frames, int] = {"bare": 0, "ruled": 1, "boxed": 2}
_LEAST_RUN, _LEAST_ALERTS, _LEAST_RANKS = 3, 2, 3
_FEW_RANKS = 8
_SUMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Lines that each panel would take if it could: `alerts` 0 where there are none. `run_short`: the run in short."""

    run: int
    run_short: int
    step: int
    alerts: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Lines inside of each panel; 0: it is left out. `is_wide`: run and step stand side by side."""

    frames: Frames
    is_wide: bool
    run: int = 0
    step: int = 0
    alerts: int = 0
    ranks: int = 0

    def outer(self, name: Literal["run", "step", "alerts", "ranks"]) -> int:
        """Lines of a panel with what is around it."""
        inner = int(getattr(self, name))
        return inner + self.overhead(name) if inner else 0

    def overhead(self, name: str) -> int:
        """Lines around a panel: in the smallest screens only the run and the ranks have a headline."""
        return 1 if self.frames == "bare" and name in ("run", "ranks") else _OVERHEAD[self.frames]


def frames_of(columns: int, rows: int) -> Frames:
    """How panels are told apart on a screen."""
    if columns >= _BOX_COLUMNS and rows >= (_WIDE_BOX_ROWS if columns >= _WIDE_COLUMNS else _BOX_ROWS):
        return "boxed"
    return "ruled" if columns >= _BOX_COLUMNS and rows >= _RULED_ROWS else "bare"


def is_wide(columns: int, rows: int) -> bool:
    """Whether two panels have room beside each other."""
    return columns >= _WIDE_COLUMNS and frames_of(columns, rows) != "bare"


def inner_width(columns: int, rows: int, *, is_half: bool = False) -> int:
    """Columns inside of a panel; `is_half` of one that shares its lines with another."""
    has_half = is_half and is_wide(columns, rows)
    outer = columns // 2 if has_half else columns
    if frames_of(columns, rows) == "boxed":
        return max(1, outer - BOX_SIDES)
    return max(1, outer - 2 if has_half else outer)


def arranged(columns: int, rows: int, needs: Needs) -> Places:
    """Places on a screen of so many rows (without the last one, which tells the keys).

    First each panel has the least that is of use, the run, alerts, ranks and the step in this order; then what is left
    goes to the run, to alerts (a quarter of the screen at most), to the step, to ranks, and to a taller curve.
    """
    places = Places(frames=frames_of(columns, rows), is_wide=is_wide(columns, rows))
    least = {
        "run": min(_LEAST_RUN, needs.run),
        "alerts": min(_LEAST_ALERTS, needs.alerts),
        "ranks": min(_LEAST_RANKS, needs.ranks),
        "step": min(1, needs.step),
    }
    for name, lines in least.items():
        free = _free(places, rows)
        around = 0 if name == "step" and places.is_wide else places.overhead(name)
        if lines and free > around:
            places = _grown(places, name, min(lines, free - around), rows)
    wanted = (
        ("run", min(needs.run_short, 5)),
        ("alerts", min(needs.alerts, max(_LEAST_ALERTS, rows // 4))),
        ("ranks", min(needs.ranks, 1 + _FEW_RANKS // 2)),
        ("step", needs.step),
        ("run", needs.run_short),
        ("ranks", min(needs.ranks, 1 + _SUMS + _FEW_RANKS)),
        ("run", needs.run),
        ("run", needs.run + min(7, rows // 12)),
        ("ranks", needs.ranks),
        ("run", needs.run + 7),
    )
    for name, lines in wanted:
        grown = _grown(places, name, lines, rows) if getattr(places, name) else places
        # With less than a line for each fact of the run, several share one: more lines would stay empty.
        if name != "run" or not needs.run_short < grown.run < needs.run:
            places = grown
    return places


def _grown(places: Places, name: str, lines: int, rows: int) -> Places:
    """Places with a panel of up to so many lines, as far as there is room."""
    while getattr(places, name) < lines:
        more = replace(places, **{name: getattr(places, name) + 1})
        if _free(more, rows) < 0:
            break
        places = more
    return places


def _free(places: Places, rows: int) -> int:
    upper = [places.outer("run"), places.outer("step")]
    used = (max(upper) if places.is_wide else sum(upper)) + places.outer("alerts") + places.outer("ranks")
    return rows - used
