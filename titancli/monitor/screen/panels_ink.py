"""What panels are made of: lines of tinted pieces, bars and curves, in signs that a stream can take.

Knows cells, tints and signs. Does not know what is drawn with them, nor how a terminal makes a tint (rich does).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.text import Text

Piece: TypeAlias = tuple[str, str]
"""A text and its tint in rich's words: `bold red`, empty for none."""
Line: TypeAlias = tuple[Piece, ...]
GOOD, BAD, DOUBTFUL, FAINT, STRONG, PLAIN = "green", "red", "yellow", "dim", "bold", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """Signs: `parts` of a cell from little to whole, `rises` of a curve from low to high, and single ones."""

    parts: str
    planned: str
    rises: str
    done: str
    open: str
    dot: str
    dash: str
    more: str
    arrows: str

    @classmethod
    def of(cls, stream: TextIO) -> Ink:
        """Blocks and lines where the encoding is one of Unicode, as rich judges it for its boxes; else ASCII."""
        return SIGNS if (stream.encoding or "").lower().startswith("utf") else ASCII


SIGNS = Ink(
    parts="▏▎▍▌▋▊▉█",
    planned="▒",
    rises="▁▂▃▄▅▆▇█",
    done="━",
    open="─",
    dot="·",
    dash="─",
    more="…",
    arrows="↑↓",
)
ASCII = Ink(parts="#", planned="=", rises="_.-~=+*#", done="#", open="-", dot="-", dash="-", more="~", arrows="up/down")


def cells(text: str) -> int:
    """Columns that a text takes on a screen: signs of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def width_of(line: Line) -> int:
    """Columns of a line."""
    return sum(cells(text) for text, _ in line)


def cut(text: str, width: int, ink: Ink) -> str:
    """A text of at most `width` columns; one that was longer ends in the sign for it."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + ink.more


def cut_line(line: Line, width: int, ink: Ink) -> Line:
    """A line of at most `width` columns."""
    left, kept = width, []
    for text, tint in line:
        if left <= 0:
            break
        piece = cut(text, left, ink)
        kept.append((piece, tint))
        left -= cells(text)
    return tuple(kept)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text with spaces behind it, or in front with `right`, up to `width` columns."""
    space = " " * max(0, width - cells(text))
    return space + text if right else text + space


def spread(left: Line, right: Line, width: int, ink: Ink) -> Line:
    """Two lines in one, the second at the right edge; it is left out where both do not fit."""
    gap = width - width_of(left) - width_of(right)
    return (*left, (" " * gap, PLAIN), *right) if right and gap >= 1 else cut_line(left, width, ink)


def text_of(lines: Iterable[Line]) -> Text:
    """Lines as rich draws them; none is wrapped."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for piece, tint in line:
            text.append(piece, tint or None)
    return text


def bar(value: float | None, whole: float, width: int, ink: Ink) -> str:
    """A bar as long as `value` is of `whole`, without the space behind it; anything above nothing can be seen."""
    if value is None or whole <= 0 or value <= 0 or width <= 0:
        return ""
    steps = len(ink.parts)
    count = min(width * steps, max(1, round(width * steps * value / whole)))
    full, part = divmod(count, steps)
    return ink.parts[-1] * full + (ink.parts[part - 1] if part else "")


def track(share: float, width: int, ink: Ink) -> Line:
    """How much of a way is done, and how much is open: told apart without colour too."""
    done = min(width, max(0, round(width * share)))
    return (ink.done * done, "cyan"), (ink.open * (width - done), FAINT)


def curve(values: Sequence[float], width: int = 40, ink: Ink = SIGNS) -> str:
    """Values from first to last as small bars, the lowest at the bottom; several share one where they are many."""
    return "".join(ink.rises[round(height * (len(ink.rises) - 1))] for height in _heights(values, width))


def chart(values: Sequence[float], width: int, height: int, ink: Ink) -> list[str]:
    """The curve over several lines, the upper one first."""
    levels = [_cells_high(each * (height * len(ink.rises) - 1), ink) for each in _heights(values, width)]
    return [
        "".join(column[row] for column in (_column(level, height, ink) for level in levels)) for row in range(height)
    ]


def _cells_high(level: float, ink: Ink) -> tuple[int, int]:
    return divmod(round(level), len(ink.rises))


def _column(level: tuple[int, int], height: int, ink: Ink) -> str:
    full, part = level
    return (ink.rises[-1] * full + ink.rises[part]).ljust(height)[height - 1 :: -1]


def _heights(values: Sequence[float], width: int) -> list[float]:
    """0 to 1 for each cell. Of many values the highest tenth lies on the upper edge: the first losses of a run

    are so high that all that comes after would be one flat line.
    """
    shown = _gathered(values, width)
    if not shown:
        return []
    low, high = min(shown), sorted(shown)[-1 - len(shown) // 10]
    span = (high - low) or 1.0
    return [min(1.0, (value - low) / span) for value in shown]


def stretched(values: Sequence[float], width: int) -> list[float]:
    """Values over so many cells, where they are fewer: some stand in several of them."""
    count = len(values)
    return [values[number * count // width] for number in range(width)] if 1 < count < width else list(values)


def _gathered(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the mean of neighbours."""
    count = len(values)
    if count <= width or width <= 0:
        return list(values)
    edges = [number * count // width for number in range(width + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
