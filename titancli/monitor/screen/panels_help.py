"""The page of help: the keys, and what the words of the panels mean.

Knows words. Does not know what a key does (view) or where a figure comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

from titancli.monitor.screen.panels_ink import FAINT, PLAIN, STRONG, Ink, Line, cut_line
from titancli.monitor.screen.view import KEYS
from titancli.report import hanging

_WORDS: tuple[tuple[str, str], ...] = (
    ("!12", "rank 12 has failed"),
    ("full", "the rank's memory, of what its GPU has"),
    ("to plan", "the rank's memory, more or less than was planned"),
    ("SM, tensor, DRAM", "share of the time in which multiprocessors, tensor cores and memory were busy"),
    ("NVLink, PCIe, net", "the busier direction, of the link's peak; net is the whole host's"),
    ("idle", "share of the last profiled step in which the rank did not compute, and most of it: the largest cause"),
    ("own time", "what a rank takes of a step without waiting for others"),
    ("behind", "how much longer its own time is than the median of its pipeline stage"),
    ("exposed", "communication that no compute hid, by mesh axis"),
    ("host too slow", "the GPU waited for Python to start its next kernel"),
    ("worst", "lost ranks, then those furthest behind, idle, close to full or over the plan"),
)
_LABEL_WIDTH = 20


def help_lines(width: int, ink: Ink) -> list[Line]:
    """Every line of the page."""
    keys, words = (_table(rows, width, ink) for rows in (KEYS, _WORDS))
    return [(("keys", STRONG),), *keys, (), (("words", STRONG),), *words]


def _table(rows: Sequence[tuple[str, str]], width: int, ink: Ink) -> list[Line]:
    lines: list[Line] = []
    for name, text in rows:
        for number, line in enumerate(hanging(f"  {name:<{_LABEL_WIDTH}}", text, max(40, width))):
            head = f"  {name:<{_LABEL_WIDTH}}" if number == 0 else " " * (_LABEL_WIDTH + 2)
            lines.append(cut_line(((head, FAINT), (line[len(head) :], PLAIN)), width, ink))
    return lines
