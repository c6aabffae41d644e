"""The decision guide on the screen: a line for each size and goal, the strategies, and the reasons of one size.

Knows the order of the words. The table is that of guide, the sentences are those of engine/strategies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import TextIO

from engine.strategies import STRATEGIES, Level, Strategy
from titancli import figures, report
from titancli.guide import Cell, Size, Thumb, guide, models, rule_of
from titancli.report import BOLD, DIM, hanging, paint, wrapped

_TABLE_WIDTH = 92
_LEVELS: dict[Level, str] = {
    "beginner": "what needs no experience",
    "advanced": "what wants to be understood first (its letter in the table)",
}
_MARKS = dict(zip((each.id for each in STRATEGIES if each.level == "advanced"), ascii_lowercase, strict=False))
_HEAD = ("goal", "layout", "tokens/s/GPU", "memory of a GPU", "bubble", "advanced")
_NARROW_HEAD = ("goal", "layout", "tokens/s", "memory", "bubble", "")
_NUMBERS = (2, 4)
"""The columns of numbers, which end at one place."""


def say_guide(stream: TextIO | None = None) -> None:
    """Writes a line for each size and goal, beneath what each strategy does and asks one to know; fits 60 columns."""
    stream = stream or sys.stdout
    width, colour = max(60, report.width_of(stream)), report.takes_colour(stream)
    lines = [
        *wrapped("which layout, by size and goal: the planner's best, and what it predicts", width, indent=2),
        *_table(width, colour),
        "",
        *wrapped(
            "predicted with what such GPUs usually sustain; for yours: titan plan --model 8B --gpu KIND --nodes N",
            width,
            indent=2,
        ),
    ]
    for level, title in _LEVELS.items():
        lines += ["", paint(title, BOLD, colour)]
        lines += [line for each in STRATEGIES if each.level == level for line in _of_strategy(each, width, colour)]
    example = models()[1]
    lines += ["", *wrapped(f"why, size by size: titan explain-config strategies {example}", width, indent=2)]
    _write(lines, stream)


def say_size(model: str, stream: TextIO | None = None) -> None:
    """Writes all that is known of the sizes of one model: what each layout uses, and why; fits 60 columns."""
    stream = stream or sys.stdout
    width, colour = max(60, report.width_of(stream)), report.takes_colour(stream)
    sizes = [size for size in guide() if size.model == model]
    lines = [line for size in sizes for line in (*_of_size(size, width, colour), "")]
    last = "* wants to be understood first; what each strategy does: titan explain-config strategies"
    _write([*lines, *wrapped(last, width, indent=2)], stream)


def _write(lines: Sequence[str], stream: TextIO) -> None:
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def _table(width: int, colour: bool) -> Iterator[str]:
    """A line for each cell, under one for each size; all in columns of one width."""
    is_wide = width >= _TABLE_WIDTH
    head = _HEAD if is_wide else _NARROW_HEAD
    rows = [(_title(size), [_row(cell, is_wide=is_wide) for cell in size.cells]) for size in guide()]
    columns = zip(head, *(row for _, some in rows for row in some), strict=True)
    widths = [max(map(len, column)) for column in columns]
    gap, indent = ("  ", "  ") if is_wide else (" ", "")
    yield ""
    yield paint(indent + _line(head, widths, gap), DIM, colour)
    for title, some in rows:
        yield paint(title, BOLD, colour)
        yield from (indent + _line(row, widths, gap) for row in some)


def _title(size: Size) -> str:
    return f"{size.model} on {report.devices(size.gpu, size.gpus)}, sequences of {size.seq_len:,} tokens"


def _row(cell: Cell, *, is_wide: bool) -> tuple[str, ...]:
    share = f"{100 * cell.needed_bytes / cell.capacity_bytes:.0f} %"
    memory = _memory(cell.needed_bytes, cell.capacity_bytes) if is_wide else share
    marks = (" " if is_wide else "").join(mark for id_, mark in _MARKS.items() if id_ in cell.strategies)
    rate, bubble = figures.rate(cell.tokens_per_s_per_gpu), figures.percent(cell.bubble_pct)
    return cell.goal, cell.layout, rate, memory, bubble, marks


def _line(cells: Sequence[str], widths: Sequence[int], gap: str) -> str:
    parts = (
        text.rjust(width) if place in _NUMBERS else text.ljust(width)
        for place, (text, width) in enumerate(zip(cells, widths, strict=True))
    )
    return gap.join(parts).rstrip()


def _of_size(size: Size, width: int, colour: bool) -> Iterator[str]:
    yield paint(_title(size), BOLD, colour)
    rule = rule_of(size.parameters)
    says = rule.says + (", and context parallel for long sequences" if size.is_long else "")
    yield from hanging("  ", f"rule of thumb for {rule.sizes}: {says}; a prototype takes FSDP", width)
    for cell in size.cells:
        yield from _of_cell(cell, width, colour)


def _of_cell(cell: Cell, width: int, colour: bool) -> Iterator[str]:
    rate, memory = figures.rate(cell.tokens_per_s_per_gpu), _memory(cell.needed_bytes, cell.capacity_bytes)
    bubble = figures.percent(cell.bubble_pct)
    yield from hanging("  ", f"{cell.goal}: {cell.layout}", width)
    yield from hanging("    ", f"{rate} tokens/s/GPU, {memory}, bubble {bubble}", width)
    yield from hanging("    uses ", ", ".join(_marked(cell.strategies)), width)
    yield from hanging("    with ", cell.description, width)
    for text in (cell.reason, *([_against_thumb(cell.thumb)] if cell.thumb else [])):
        yield from (paint(line, DIM, colour) for line in hanging("    why  ", text, width))


def _marked(ids: Sequence[str]) -> list[str]:
    """Names of strategies; those to understand first with a star."""
    return [f"{each.name}{'*' if each.level == 'advanced' else ''}" for each in STRATEGIES if each.id in ids]


def _memory(needed_bytes: int, capacity_bytes: int) -> str:
    whole, share = figures.memory(capacity_bytes), 100 * needed_bytes / capacity_bytes
    return f"{needed_bytes / (1 << 30):.1f} of {whole} ({share:.0f} %)"


def _against_thumb(thumb: Thumb) -> str:
    """Where the planner and the rule of thumb differ, with the figures of the rule's layout."""
    start = f"not the rule of thumb, {thumb.name}: "
    if thumb.tokens_per_s_per_gpu is None:
        return start + thumb.reason
    reached = f"{figures.rate(thumb.tokens_per_s_per_gpu)} tokens/s/GPU in {figures.memory(thumb.needed_bytes)}"
    return f"{start}at its best ({thumb.description}) {reached}, {thumb.reason}"


def _of_strategy(strategy: Strategy, width: int, colour: bool) -> Iterator[str]:
    mark = f"{_MARKS[strategy.id]}  " if strategy.id in _MARKS else ""
    yield f"  {mark}{paint(strategy.name, BOLD, colour)}, for {strategy.for_}"
    yield from hanging("    ", strategy.explains, width)
    yield from (paint(line, DIM, colour) for line in hanging("    set  ", ", ".join(strategy.keys), width))
