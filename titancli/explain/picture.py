"""The mesh as a picture: ranks by node, and which of them talk to each other, over what.

Knows how rows are drawn and which nodes stand for all. Does not know who talks to whom: that are the planner's wires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from titancli import charts, figures, report

if TYPE_CHECKING:
    from engine.planner.wires import Wire
    from titancli.charts import Pen

# Two nodes are seen at a glance; of more, node 0 and its neighbours stand for all.
_MOST_NODES = 2
# Columns between ranks, from the airy to the narrow.
_GAPS = (3, 2)
_RANKS = "rank"


def mesh_picture(wires: Sequence[Wire], *, world_size: int, ranks_per_node: int, width: int, pen: Pen) -> list[str]:
    """Ranks node by node, and below them a row for each axis: ranks with the same number in it talk to each other."""
    if not wires:
        return ["  one rank: it talks to nobody"]
    nodes = world_size // ranks_per_node
    shown = _shown(wires, nodes, ranks_per_node)
    ruler = _Ruler.of(wires, last_rank=(shown[-1] + 1) * ranks_per_node - 1, ranks=ranks_per_node, width=width)
    lines: list[str] = []
    for before, node in zip((-1, *shown), shown, strict=False):
        if node - before > 1:
            lines.append(f"  ... {_likewise(before + 1, node - 1)}")
        rows = [wire for wire in wires if node == 0 or not wire.in_one_node]
        ranks = range(node * ranks_per_node, (node + 1) * ranks_per_node)
        lines += [f"  node {node}", *_node(ranks, rows, ruler, pen)]
    if shown[-1] < nodes - 1:
        lines.append(f"  ... {_likewise(shown[-1] + 1, nodes - 1)}")
    note = "in a row, ranks with the same number talk to each other"
    note += "; the bytes are what one rank sends in a step" if ruler.says_bytes else ""
    return [*lines, *report.wrapped(f"  {note}", width, indent=2)]


def wire_lines(wires: Sequence[Wire], width: int) -> list[str]:
    """What each axis carries in words: its groups, its link, what one rank sends in a step, and the time of that."""
    label = max((len(wire.axis) for wire in wires), default=0) + 4
    lines: list[str] = []
    for wire in wires:
        first, second = groups_in_words(wire), traffic_in_words(wire)
        lines += report.hanging(f"  {wire.axis}".ljust(label), first, width)
        lines += report.hanging(" " * label, second, width)
    return lines


def groups_in_words(wire: Wire) -> str:
    """`0-7, one of 64 groups of 8, each in one node, over NVLink (346 GB/s)`."""
    if wire.in_one_node:
        where = "in one node"
    elif wire.in_node == 1:
        where = "each rank on another node"
    else:
        where = f"{wire.in_node} of them in a node"
    if not wire.in_one_node and wire.link != "network":
        where += f", nodes joined by {wire.link}"
    rate = "" if wire.bytes_per_s is None else f" ({_rate(wire.bytes_per_s)})"
    groups = "the one group" if wire.groups == 1 else f"one of {wire.groups:,} groups"
    context = " (over context ranks too)" if wire.with_context else ""
    return f"ranks {_ranks(wire)}: {groups} of {wire.degree:,}{context}, {where}, over {_link(wire)}{rate}"


def traffic_in_words(wire: Wire) -> str:
    """`a rank sends 26.0 GiB a step (weights 5.2 GiB, gradients 20.8 GiB) in 0.68 s, 18 % hidden by compute`."""
    parts = ", ".join(f"{part.name} {figures.memory(part.sent_bytes)}" for part in wire.parts)
    text = f"a rank sends {figures.memory(wire.sent_bytes)} a step ({parts})"
    if wire.seconds is None:
        return f"{text}; how long that takes is not known"
    hidden = wire.hidden_pct
    share = "" if hidden is None else f", {hidden:.0f} % of it hidden by compute"
    return f"{text} in {charts.seconds(wire.seconds)}{share}"


def _link(wire: Wire) -> str:
    return "the network" if wire.link == "network" else wire.link


def _rate(bytes_per_s: float) -> str:
    gbyte = bytes_per_s / 1e9
    return f"{gbyte:,.0f} GB/s" if gbyte >= 10 else f"{gbyte:.2g} GB/s"


def _ranks(wire: Wire) -> str:
    """The ranks of the first group: `0-7`, or `0, 8 ... 56`."""
    ranks = wire.group_of(0)
    if wire.stride == 1 and wire.degree > 2:
        return f"0-{ranks[-1]}"
    if len(ranks) <= 4:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]}, {ranks[1]} ... {ranks[-1]}"


def _shown(wires: Sequence[Wire], nodes: int, ranks_per_node: int) -> list[int]:
    """The nodes that are drawn: all of a few, else node 0 and the next one of every axis that leaves it."""
    if nodes <= _MOST_NODES:
        return list(range(nodes))
    far = ({rank // ranks_per_node for rank in wire.group_of(0)} - {0} for wire in wires)
    return sorted({0} | {min(others) for others in far if others})


def _likewise(first: int, last: int) -> str:
    return f"node {first} likewise" if first == last else f"nodes {first} to {last} likewise"


@dataclass(frozen=True, slots=True)
class _Ruler:
    """The columns of all nodes: of labels, of a rank, between ranks, how many ranks fit, what stands behind them."""

    label: int
    digits: int
    gap: int
    fit: int
    says_bytes: bool

    @classmethod
    def of(cls, wires: Sequence[Wire], *, last_rank: int, ranks: int, width: int) -> _Ruler:
        """The airiest that has a node in one line; else the narrowest, in several."""
        label, digits = max(len(name) for name in (_RANKS, *(wire.axis for wire in wires))) + 6, len(str(last_rank))
        for says_bytes, gap in product((True, False), _GAPS):
            tail = max(len(_tail(wire, says_bytes=says_bytes)) for wire in wires)
            fit = max(1, (width - label - tail + gap) // (digits + gap))
            if fit >= ranks:
                break
        return cls(label, digits, gap, fit, says_bytes)


def _tail(wire: Wire, *, says_bytes: bool) -> str:
    """What stands behind a row."""
    return f"  {wire.link}" + (f", {figures.memory(wire.sent_bytes)}" if says_bytes else "")


def _node(ranks: range, wires: Sequence[Wire], ruler: _Ruler, pen: Pen) -> list[str]:
    """One node: its ranks, and the group of each over every axis; ranks beyond the width go on below."""
    lines: list[str] = []
    for begin in range(0, len(ranks), ruler.fit):
        piece = ranks[begin : begin + ruler.fit]
        numbers = (" " * ruler.gap).join(f"{rank:>{ruler.digits}}" for rank in piece)
        lines.append(f"    {_RANKS}".ljust(ruler.label) + numbers)
        for wire in wires:
            row = _row([wire.group_of(rank)[0] for rank in piece], ruler, pen)
            lines.append(f"    {wire.axis}".ljust(ruler.label) + row + _tail(wire, says_bytes=ruler.says_bytes))
    return lines


def _row(firsts: Sequence[int], ruler: _Ruler, pen: Pen) -> str:
    """The groups of neighbouring ranks by their first: a line joins those of one group; rank 0's stands out."""
    dash = "─" if pen.has_blocks else "-"
    texts = [f"{firsts[0]:>{ruler.digits}}"]
    for before, first in pairwise(firsts):
        fill = dash if before == first else " "
        texts.append(fill * ruler.gap + str(first).rjust(ruler.digits, fill))
    return "".join(
        report.paint(text, report.BOLD, pen.has_colour and first == 0)
        for text, first in zip(texts, firsts, strict=True)
    )
