"""The comparison as a person reads it: what the runs are, in what they differ, and their figures side by side.

Knows words, columns and widths. Does not compute: figures stand in Beside.
"""

from __future__ import annotations

from titancli import figures
from titancli.compare.beside import Beside, Row
from titancli.compare.columns import Block, blocks
from titancli.compare.differences import Difference
from titancli.report import BOLD, hanging, paint, printable, shortened, wrapped

COLOURS = ("34", "33", "32", "31", "35", "36", "94", "93", "92", "91", "95", "96")
"""ANSI codes of the runs in their order; from the thirteenth on they come again."""
_LONGEST_NAME, _LEAST_NAME = 32, 8
_MOST_KEYS = 20
_GAP = "  "


def lines_of(compared: Beside, *, width: int, colour: bool) -> list[str]:
    """All of it, in lines of `width` columns: blocks with a title, an empty line between two."""
    parts = [_heads(compared, width, colour), _differing(compared, width)]
    if compared.begun:
        parts += [_figures(compared, each, width, colour) for each in blocks(compared)]
    else:
        parts.append(["no run has come to a step yet"])
    lines: list[str] = []
    for part in parts:
        if part:
            title, *rest = part
            lines += [*([""] if lines else []), paint(title, BOLD, colour), *rest]
    return lines


def mark(row: Row, compared: Beside, colour: bool) -> str:
    """The letter of a run in its colour."""
    return paint(row.mark, COLOURS[compared.rows.index(row) % len(COLOURS)], colour)


# ── what the runs are ──


def _heads(compared: Beside, width: int, colour: bool) -> list[str]:
    rows, common = compared.rows, f"{compared.begins}...{compared.ends}"
    title = figures.many(len(rows), "run")
    if common != "...":
        title += f", all called {printable(common)}"
    name_width = min(_LONGEST_NAME, max(len(row.short) for row in rows), max(_LEAST_NAME, width - 40))
    state_width = max(len(row.run.state) for row in rows)
    lines = [shortened(title, width - 1)]
    for row in rows:
        label = f"  {row.mark}  {_fitted(row.short, name_width)}  {row.run.state:<{state_width}}  "
        first, *more = hanging(label, _came_to(row), width)
        lines += [first.replace(row.mark, mark(row, compared, colour), 1), *more]
    return lines


def _came_to(row: Row) -> str:
    run, curve = row.run, row.curve
    of = f" of {run.steps:,}" if run.steps is not None else ""
    told = [f"step {run.step:,}{of}" if run.step is not None else f"no step yet{of}"]
    if run.step is None and run.phase is not None and not run.is_over:
        told[0] += f" ({run.phase})"
    if curve.attempts > 1:
        again = f", {figures.many(curve.redone, 'step')} done anew" if curve.redone else ""
        told.append(f"{curve.attempts} attempts{again}")
    if run.failure is not None:
        told.append(printable(run.failure))
    return "; ".join(told)


def _fitted(name: str, width: int) -> str:
    """A name in so many columns; where it is longer, its middle is left out."""
    name = printable(name)
    if len(name) > width:
        kept = width - 2
        name = f"{name[: kept - kept // 2]}..{name[len(name) - kept // 2 :]}"
    return f"{name:<{width}}"


# ── in what they differ ──


def _differing(compared: Beside, width: int) -> list[str]:
    found = compared.differences
    if len(compared.rows) < 2:
        return []
    if not found:
        is_known = all(row.run.config for row in compared.rows)
        return ["what differs", "  nothing" + ("" if is_known else ", as far as configs can be read")]
    lines = ["what differs"]
    for each in found[:_MOST_KEYS]:
        lines += hanging(f"  {printable(each.key)}  ", _values(each, compared), width)
    if len(found) > _MOST_KEYS:
        lines.append(f"  and {len(found) - _MOST_KEYS} more keys; --json has all")
    return lines


def _values(difference: Difference, compared: Beside) -> str:
    """`1F1B: A, C; GPipe: B`: each value once, with the marks of its runs."""
    rows: dict[str, list[Row]] = {}
    for row, value in zip(compared.rows, difference.values, strict=True):
        rows.setdefault(_value(value), []).append(row)
    return "; ".join(f"{value}: {compared.marks_of(each)}" for value, each in rows.items())


def _value(value: object) -> str:
    if value is None:
        return figures.not_known()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return printable(str(value)) or '""'


# ── figures ──


def _figures(compared: Beside, block: Block, width: int, colour: bool) -> list[str]:
    """A title, a heading, a line for each run with a step, and a note; names where there is room for them."""
    rows = compared.begun
    cells = [[column.head, *(column.cell(row) for row in rows)] for column in block.columns]
    cells = [column for column in cells if {*column[1:]} - {"", figures.NOT_KNOWN}]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in cells]
    room = width - 5 - sum(len(_GAP) + each for each in widths)
    longest = max(len(row.short) for row in rows)
    name_width = min(_LONGEST_NAME, longest, room)
    if name_width < min(_LEAST_NAME, longest):
        name_width = 0
    labels = ["   " + " " * name_width]
    labels += [f"{mark(row, compared, colour)}  {_fitted(row.short, name_width) if name_width else ''}" for row in rows]
    lines = [block.title]
    for index, label in enumerate(labels):
        values = (f"{column[index]:>{size}}" for column, size in zip(cells, widths, strict=True))
        lines.append(f"  {label}{_GAP}{_GAP.join(values)}".rstrip())
    return [*lines, *wrapped(f"  {block.note}", width, indent=2)]
