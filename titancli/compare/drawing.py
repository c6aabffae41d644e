"""Curves in a terminal: losses against steps, tokens or time, as large as the window.

Knows cells, braille dots, and letters where a stream takes neither dots nor colour. Does not know runs: a curve is
points, a mark and a colour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from titancli.charts import Pen
from titancli.compare.axis import Scale, along_scale, loss_scale
from titancli.compare.curve import Along, Points, loss_at
from titancli.report import BOLD, paint

_LEAST_WIDTH, _LEAST_HEIGHT = 20, 5
_COLUMNS_A_TICK, _ROWS_A_TICK = 9, 2
# Bits of a braille letter: columns left and right, each from the top down.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve: its letter, its colour (an ANSI code), and where it goes."""

    mark: str
    colour: str
    points: Points


def drawing(lines: Sequence[Line], along: Along, *, title: str, width: int, height: int, pen: Pen) -> list[str]:
    """A title, `height` rows of curves with the losses at their left, and the axis below; nothing without points.

    With colour, curves are dots; without, letters. Where several share a cell they show by turns.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return []
    height = max(_LEAST_HEIGHT, height)
    curves = [line.points for line in lines]
    up, is_cut = loss_scale(curves, most_ticks=max(2, height // _ROWS_A_TICK))
    left = max(map(len, up.texts), default=0)
    columns = max(_LEAST_WIDTH, width - left - 2)
    across = along_scale(curves, along, most_ticks=max(2, columns // _COLUMNS_A_TICK))
    if is_cut:
        title += f" (first losses, up to {max(loss for points in curves for _, loss in points):.4g}, lie above)"
    cells = _cells(lines, across, up, columns, height, dots=pen.has_colour and pen.has_blocks)
    border, corner, floor = ("│", "└", "─") if pen.has_blocks else ("|", "+", "-")
    texts = _beside(up, height)
    rows = [
        f"{texts.get(row, ''):>{left}} {border}{_row(cells, lines, row, columns, pen)}".rstrip()
        for row in range(height)
    ]
    below = _below(across, columns)
    indent = " " * (left + 2)
    label = across.label.rjust(columns) if len(across.label) <= columns else across.label
    return [
        paint(title, BOLD, pen.has_colour),
        *rows,
        f"{' ' * left} {corner}{floor * columns}",
        f"{indent}{below}".rstrip(),
        f"{indent}{label}",
    ]


# ── cells ──

_Cells = Mapping[tuple[int, int], Mapping[int, int]]
"""By row and column: the curves there, and the dots of each."""


def _cells(
    lines: Sequence[Line], across: Scale, up: Scale, columns: int, height: int, *, dots: bool
) -> dict[tuple[int, int], dict[int, int]]:
    wide, high = (2, 4) if dots else (1, 1)
    cells: dict[tuple[int, int], dict[int, int]] = {}
    for number, line in enumerate(lines):
        for x, y in _track(line.points, across, up, columns * wide, height * high, connected=dots):
            cell = cells.setdefault((y // high, x // wide), {})
            cell[number] = cell.get(number, 0) | (_DOTS[x % wide][y % high] if dots else 1)
    return cells


def _track(
    points: Points, across: Scale, up: Scale, columns: int, rows: int, *, connected: bool
) -> Iterator[tuple[int, int]]:
    """The dots of a curve, from the left: one in each column, and where connected those between it and the last one."""
    before: int | None = None
    for x in range(columns):
        loss = _mean_in(points, across, x, columns)
        if loss is None:
            continue
        y = round((1 - up.share(loss)) * (rows - 1))
        if y < 0:
            before = None
            continue
        yield x, y
        if connected and before is not None:
            step = 1 if before < y else -1
            yield from ((x, between) for between in range(before + step, y, step))
        before = y


def _mean_in(points: Points, across: Scale, x: int, columns: int) -> float | None:
    """The mean of a column's losses; where none lies in it, the loss on the line between those around it."""
    low, high = (across.low + (across.high - across.low) * edge / columns for edge in (x, x + 1))
    begin = bisect_left(points, low, key=lambda point: point[0])
    end = bisect_left(points, high, key=lambda point: point[0]) if x < columns - 1 else len(points)
    if begin < end:
        return sum(loss for _, loss in points[begin:end]) / (end - begin)
    return loss_at(points, (low + high) / 2)


def _row(cells: _Cells, lines: Sequence[Line], row: int, columns: int, pen: Pen) -> str:
    return "".join(_letter(cells.get((row, column), {}), lines, column, pen) for column in range(columns)).rstrip()


def _letter(cell: Mapping[int, int], lines: Sequence[Line], column: int, pen: Pen) -> str:
    if not cell:
        return " "
    number = list(cell)[column % len(cell)]
    is_dots = pen.has_colour and pen.has_blocks
    dots = 0
    for each in cell.values():
        dots |= each
    return paint(chr(_BRAILLE + dots) if is_dots else lines[number].mark, lines[number].colour, pen.has_colour)


# ── axes ──


def _beside(up: Scale, height: int) -> dict[int, str]:
    """The texts of the losses by row."""
    return {round((1 - up.share(tick)) * (height - 1)): text for tick, text in zip(up.ticks, up.texts, strict=True)}


def _below(across: Scale, columns: int) -> str:
    """The texts of the axis below, each in the middle under its place, as far as they do not touch."""
    line = ""
    for tick, text in zip(across.ticks, across.texts, strict=True):
        place = min(columns - len(text), max(0, round(across.share(tick) * (columns - 1)) - len(text) // 2))
        if not line or place >= len(line) + 2:
            line += " " * (place - len(line)) + text
    return line
