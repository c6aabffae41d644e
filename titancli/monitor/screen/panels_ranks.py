"""The table of ranks: sorted, summed up, and as many rows of it as there is room for.

Knows orders and what stands above and below the rows. Does not know columns (panels_columns).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from titancli import figures
from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_columns import GAP, Chosen, Row, chosen, over_plan_pct, share_pct
from titancli.monitor.screen.panels_ink import BAD, FAINT, PLAIN, STRONG, Ink, Line, cut_line
from titancli.report import wrapped

Order = Literal["worst", "rank", "memory", "idle", "behind"]
ORDERS: tuple[Order, ...] = get_args(Order)
# Behind by so much, idle by so much more than the middle, or so close to full: each weighs the same among the worst.
_BEHIND_PCT, _IDLE_PCT, _OVER_PCT, _FULL_PCT, _TIGHT_PCT = 5.0, 10.0, 10.0, 90.0, 5.0
_SUMS: tuple[tuple[str, Callable[[Sequence[float]], float]], ...] = (
    ("max", max),
    ("med", statistics.median),
    ("min", min),
)
_LEAST_SUMMED = 4
_ROWS_BEFORE_NOTES = 5
# What the system counts of a process, and no plan does.
_WHOLE = "memory: of the whole process, Python and torch with it; planned: of the training in it"
_Key: TypeAlias = Callable[[Row], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTable:
    """Lines of the table; `first` to `last` are the places of the rows in it, from 0, of `count` rows in all."""

    lines: tuple[Line, ...]
    first: int
    last: int
    count: int

    @property
    def shown(self) -> int:
        """Rows that stand in it."""
        return self.last - self.first


def ordered(frame: Frame, order: Order, *, is_reversed: bool = False) -> list[Row]:
    """All rows; the worst first, or the largest, or by number. What is not known comes last."""
    rows = sorted(frame.ranks, key=lambda row: int(row["rank"]))
    if order != "rank":
        key = {
            "worst": _badness(frame),
            "memory": _fullness,
            "idle": _value("idle_pct"),
            "behind": _value("behind_pct"),
        }
        rows.sort(key=key[order], reverse=True)
    return rows[::-1] if is_reversed else rows


def rank_table(
    frame: Frame,
    width: int,
    ink: Ink,
    *,
    height: int | None = None,
    top: int = 0,
    order: Order = "worst",
    is_reversed: bool = False,
    most: int | None = None,
) -> RankTable:
    """The table in at most `height` lines, from row `top` on; without a height in as many as it takes, `most` rows."""
    rows = ordered(frame, order, is_reversed=is_reversed)
    on_cpu = frame.seen.gpu == "cpu"
    table = chosen(frame.ranks, width, on_cpu=on_cpu)
    notes = _notes(table, width, on_cpu=on_cpu)
    room = height if height is not None else wanted_lines(frame, width)
    sums = _sums(frame.ranks, table, room, ink)
    notes = notes[: max(0, room - 1 - len(sums) - min(len(rows), _ROWS_BEFORE_NOTES))]
    shown = max(0, room - 1 - len(sums) - len(notes))
    shown = shown if most is None else min(shown, most)
    first = max(0, min(top, len(rows) - shown))
    visible = rows[first : first + shown]
    lines = [_head(table, ink), *sums, *(_line(row, frame, table, ink) for row in visible), *_faint(notes)]
    cut_lines = tuple(cut_line(line, width, ink) for line in lines[:room])
    return RankTable(lines=cut_lines, first=first, last=first + len(visible), count=len(rows))


def wanted_lines(frame: Frame, width: int) -> int:
    """Lines that the whole table would take."""
    on_cpu = frame.seen.gpu == "cpu"
    count = len(frame.ranks)
    notes = _notes(chosen(frame.ranks, width, on_cpu=on_cpu), width, on_cpu=on_cpu)
    return 1 + count + (len(_SUMS) if count >= _LEAST_SUMMED else 0) + len(notes)


def _notes(table: Chosen, width: int, *, on_cpu: bool) -> list[str]:
    """What is said below the table: the meters that are missing and why, and what memory means on a processor."""
    notes = [f"{', '.join(heads)}: {figures.not_known(reason)}" for reason, heads in table.unknown.items()]
    notes += [
        f"{', '.join(heads)} of {who}: {figures.not_known(reason)}" for (who, reason), heads in table.partly.items()
    ]
    notes += [_WHOLE] if on_cpu else []
    return [line for note in notes for line in wrapped(note, max(20, width), indent=2)]


def _faint(notes: Sequence[str]) -> list[Line]:
    return [((note, FAINT),) for note in notes]


def _head(table: Chosen, ink: Ink) -> Line:
    """The names of the columns."""
    return (((" " * GAP).join(column.fitted(column.head, ink) for column in table.columns), STRONG),)


def _line(row: Row, frame: Frame, table: Chosen, ink: Ink) -> Line:
    """A rank's row; one that failed has a mark and its colour, one that was not heard of is faint."""
    rank = frame.seen.ranks.get(row["rank"])
    has_failed = rank is not None and rank.failure is not None
    whole = BAD if has_failed else FAINT if rank is None else PLAIN
    pieces: list[tuple[str, str]] = []
    for column in table.columns:
        text, tint = column.cell(row, ink)
        text = column.fitted(f"!{row['rank']}", ink) if has_failed and column.key == "rank" else text
        pieces += [(" " * GAP, PLAIN)] if pieces else []
        pieces.append((text, whole or tint))
    return tuple(pieces)


def _sums(rows: Sequence[Row], table: Chosen, room: int, ink: Ink) -> list[Line]:
    """The largest, middle and smallest figure of each column; of few ranks none, in little room only the middle."""
    if len(rows) < _LEAST_SUMMED or room < 6:
        return []
    known = [[value for row in rows if (value := column.value(row)) is not None] for column in table.columns]
    wanted = _SUMS if room >= 10 else _SUMS[1:2]
    return [_sum(name, of, known, table, ink) for name, of in wanted]


def _sum(
    name: str, of: Callable[[Sequence[float]], float], known: Sequence[Sequence[float]], table: Chosen, ink: Ink
) -> Line:
    pieces: list[tuple[str, str]] = []
    for column, values in zip(table.columns, known, strict=True):
        text = column.figure(of(values), ink) if values else column.fitted(name if column.key == "rank" else "", ink)
        pieces += [(" " * GAP, PLAIN)] if pieces else []
        pieces.append((text, "cyan" if values else STRONG))
    return tuple(pieces)


def _badness(frame: Frame) -> _Key:
    """How much a rank stands out: lost ones first, then by what is furthest from well."""
    idle = [row["idle_pct"] for row in frame.ranks if row["idle_pct"] is not None]
    middle = statistics.median(idle) if idle else 0.0

    def badness(row: Row) -> float:
        rank = frame.seen.ranks.get(row["rank"])
        if frame.seen.ranks and (rank is None or rank.failure is not None):
            return float("inf")
        return max(
            (row["behind_pct"] or 0.0) / _BEHIND_PCT,
            ((row["idle_pct"] or middle) - middle) / _IDLE_PCT,
            ((share_pct(row) or 0.0) - _FULL_PCT) / _TIGHT_PCT,
            0.0 if frame.seen.gpu == "cpu" else (over_plan_pct(row) or 0.0) / _OVER_PCT,
        )

    return badness


def _fullness(row: Row) -> float:
    share = share_pct(row)
    return share if share is not None else float(row["used_bytes"] or -1) / 1e18


def _value(key: str) -> _Key:
    return lambda row: float("-inf") if row[key] is None else float(row[key])
