"""A list to choose from, as a state, what each key makes of it, and how it is drawn in so many columns and lines.

Knows no terminal (prompts reads keys and puts lines on the screen) and no question: it is handed texts and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from titancli import report

Style: TypeAlias = Literal["", "bold", "dim", "reverse"]
Line: TypeAlias = tuple[Style, str]

BACK, QUIT = "back", "quit"
_MOST_NOTE_LINES = 4
_LEAST_ROWS = 3
# On a window that is pulled together further, lines are cut where it ends.
_LEAST_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One choice: its value, how it is listed, and what is said while it is pointed at."""

    value: str
    title: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """What is asked. `is_open`: what is typed is the answer; else it only points at the row that has it."""

    text: str
    about: str
    rows: tuple[Row, ...]
    default: str
    is_open: bool = False
    has_back: bool = True

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The choices, and the ways out of the question."""
        back = (Row(value=BACK, title="back", note="to the question before"),) if self.has_back else ()
        return (*self.rows, *back, Row(value=QUIT, title="quit", note="nothing is written"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picking:
    """Where a person is in a menu; `cursor` is None where what is typed is in no row."""

    menu: Menu
    cursor: int | None
    typed: str = ""


def opened(menu: Menu) -> Picking:
    """The menu with its default pointed at."""
    values = [row.value for row in menu.rows]
    return Picking(menu=menu, cursor=values.index(menu.default))


def moved(picking: Picking, by: int) -> Picking:
    """An arrow: the row before or after, around the ends; what was typed is dropped."""
    count = len(picking.menu.all_rows)
    cursor = picking.cursor if picking.cursor is not None else (-1 if by > 0 else 0)
    return replace(picking, cursor=(cursor + by) % count, typed="")


def typed(picking: Picking, letters: str) -> Picking:
    """Letters after those that are there."""
    return _pointed(replace(picking, typed=picking.typed + letters))


def erased(picking: Picking) -> Picking:
    """One letter less."""
    return _pointed(replace(picking, typed=picking.typed[:-1]))


def quits(picking: Picking, letter: str) -> bool:
    """Whether a letter leaves the wizard at once: q, where no answer begins with it."""
    begins = any(row.value.startswith("q") for row in picking.menu.rows)
    return letter == "q" and not picking.typed and not begins


def entered(picking: Picking) -> str:
    """What Enter answers: a value, BACK, QUIT, or what was typed where no row has it."""
    word = picking.typed.strip()
    if word.lower() in (BACK, QUIT, "q"):
        return QUIT if word.lower() == "q" else word.lower()
    if word and (picking.menu.is_open or picking.cursor is None):
        return word
    assert picking.cursor is not None, "where nothing is typed a row is pointed at"
    return picking.menu.all_rows[picking.cursor].value


def _pointed(picking: Picking) -> Picking:
    """At the row that has what is typed: as a whole, or where its value, one word of that, or its title begins."""
    word, menu = picking.typed.strip().lower(), picking.menu
    if not word:
        return replace(picking, cursor=opened(menu).cursor)
    rows = menu.rows if menu.is_open else menu.all_rows
    tests: list[Callable[[Row], bool]] = [lambda row: row.value.lower() == word or (row.value, word) == (QUIT, "q")]
    if not menu.is_open:
        tests.append(lambda row: any(part.startswith(word) for part in (row.value.lower(), *row.value.lower().split())))
        tests.append(lambda row: row.title.lower().startswith(word))
    found = next((index for test in tests for index, row in enumerate(rows) if test(row)), None)
    return replace(picking, cursor=found)


def drawn(picking: Picking, *, columns: int, lines: int) -> list[Line]:
    """The menu on so many lines at most; rows that have no room are told by number."""
    menu, room = picking.menu, max(_LEAST_COLUMNS, columns - 1)
    question = f"{menu.text} {picking.typed}_" if picking.typed else menu.text
    about = report.wrapped(f"  {menu.about}", room, indent=2) if menu.about else []
    hint = "arrows or typing, Enter" + (", back: Ctrl-B" if menu.has_back else "") + ", quit: Ctrl-C"
    note = _note(picking, room)
    # Question, hint, and the line that the cursor of the terminal stands on.
    spare = lines - 3 - len(about) - len(note)
    if spare < _LEAST_ROWS:
        spare += len(about) - len(about[:1]) + len(note) - len(note[:1])
        about, note = about[:1], note[:1]
    listed = _listed(picking, room, max(1, spare))
    dim: list[Line] = [("dim", line) for line in about]
    return [("bold", question[:room]), *dim, *listed, *(("dim", line) for line in note), ("dim", hint[:room])]


def _note(picking: Picking, room: int) -> list[str]:
    note = "" if picking.cursor is None else picking.menu.all_rows[picking.cursor].note
    wrapped = report.wrapped(f"  {note}", room, indent=2) if note else []
    if len(wrapped) > _MOST_NOTE_LINES:
        wrapped = [*wrapped[: _MOST_NOTE_LINES - 1], wrapped[_MOST_NOTE_LINES - 1][: room - 4] + " ..."]
    return wrapped


def _listed(picking: Picking, room: int, most: int) -> list[Line]:
    """The rows around the one that is pointed at."""
    rows = picking.menu.all_rows
    at = picking.cursor or 0
    shown = len(rows) if len(rows) <= most else max(1, most - 1)
    first = min(max(0, at - shown // 2), len(rows) - shown)
    found: list[Line] = []
    for index in range(first, first + shown):
        points = index == picking.cursor
        found.append(("reverse" if points else "", f"{'>' if points else ' '} {rows[index].title}"[:room]))
    hidden = len(rows) - shown
    if hidden and most > 1:
        found.append(("dim", f"  {first} more above, {hidden - first} below"[:room]))
    return found
