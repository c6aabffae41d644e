"""Bars in a terminal: what each pipeline rank holds, and where the seconds of a step go.

Knows width, colour and letters that a stream can take. Does not know how figures come about: they are the Plan's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from titancli import figures, report

if TYPE_CHECKING:
    from engine.planner.plan import Plan, Stage
    from engine.planner.timing import Time

_LEAST_WIDTH = 60
# Bars that are taken in at a glance.
_MOST_BARS = 16
AXES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp_shard": "FSDP",
    "dp_replicate": "replicas",
    "pp": "pipeline sends",
}
"""What each mesh axis is called in a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """How one part of a bar is drawn: its block, the letter where a stream takes no blocks, and its colour."""

    name: str
    block: str
    letter: str
    colour: str


_PARTS = (
    Ink(name="weights, gradients, optimizer", block="█", letter="#", colour="34"),
    Ink(name="activations", block="▓", letter="=", colour="36"),
    Ink(name="logits", block="▒", letter="+", colour="35"),
    Ink(name="gathered weights and buffers", block="░", letter="-", colour="33"),
)
_WORKING, _WAITING = _PARTS[0], _PARTS[3]


def say_memory(plan: Plan, stream: TextIO | None = None) -> None:
    """Writes one bar for each pipeline rank, as long as what it takes of its GPU.

    Ranks alike share one; neighbours do where there are many, and the fullest of them is shown.
    """
    stream = stream or sys.stdout
    _write(memory_chart(plan, width=_width(stream), pen=Pen.of(stream)), stream)


def say_time(time: Time, stream: TextIO | None = None) -> None:
    """Writes where the seconds of a step go; nothing where no speed is known."""
    stream = stream or sys.stdout
    _write(time_chart(time, width=_width(stream), pen=Pen.of(stream)), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """What a stream can take."""

    has_blocks: bool
    has_colour: bool

    @classmethod
    def of(cls, stream: TextIO) -> Pen:
        """Blocks where the encoding has them, colour where report says so."""
        try:
            "█▓▒░".encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return cls(has_blocks=False, has_colour=report.takes_colour(stream))
        return cls(has_blocks=True, has_colour=report.takes_colour(stream))

    def draw(self, part: Ink, cells: int) -> str:
        """So many cells of a part."""
        text = (part.block if self.has_blocks else part.letter) * cells
        return f"\x1b[{part.colour}m{text}\x1b[0m" if self.has_colour and text else text


def memory_chart(plan: Plan, *, width: int, pen: Pen) -> list[str]:
    """The lines of `say_memory`: label, bar up to the GPU's capacity, GiB of it, the fullest moment below."""
    capacity = plan.memory.capacity_bytes
    rows = [(_stage_name(group, plan.mesh.pp), _fullest(group)) for group in _alike(plan.stages)]
    return [f"memory of one rank, of {figures.memory(capacity)}", *_bars(rows, capacity, width=width, pen=pen)]


def say_side_by_side(plans: Sequence[tuple[str, Plan]], stream: TextIO | None = None) -> None:
    """Writes one bar for each plan of a list, with its label: what its fullest rank takes of its GPU."""
    stream = stream or sys.stdout
    rows = [(label, _fullest(plan.stages)) for label, plan in plans]
    capacity = plans[0][1].memory.capacity_bytes
    _write(_bars(rows, capacity, width=_width(stream), pen=Pen.of(stream)), stream)


def _bars(rows: Sequence[tuple[str, Stage]], capacity: int, *, width: int, pen: Pen) -> list[str]:
    """A line for each labelled stage, and the legend below them."""
    label_width = max(len(name) for name, _ in rows)
    figure_width = len(f"{capacity / (1 << 30):.1f}") + 7
    room = max(10, width - label_width - figure_width - 8)
    lines: list[str] = []
    for name, stage in rows:
        needed = stage.memory.needed_bytes
        cells = _shares(_held(stage), needed, round(room * min(1.0, needed / capacity)))
        bar = "".join(pen.draw(part, count) for part, count in zip(_PARTS, cells, strict=True))
        empty = " " * (room - sum(cells))
        lines.append(f"  {name:<{label_width}}  {bar}{empty}| {figures.memory(needed):>{figure_width}}")
    legend = [f"{pen.draw(part, 1)} {part.name}" for part in _PARTS]
    return [*lines, *_packed(legend, [len(part.name) + 2 for part in _PARTS], width)]


def time_chart(time: Time, *, width: int, pen: Pen, shards: str = "FSDP") -> list[str]:
    """The lines of `say_time`: one bar for each part of a step, with its seconds and its share.

    `shards` is what sharding over data ranks is called.
    """
    if time.step_s is None:
        return []
    parts = time_parts(time, shards=shards)
    label_width = max(len(name) for name, _ in parts)
    room = max(10, width - label_width - 24)
    lines = [f"time of one step: {seconds(time.step_s)}"]
    for name, value in parts:
        share = value / time.step_s
        cells = round(room * share)
        bar = pen.draw(_WAITING if name.startswith(("exposed", "pipeline")) else _WORKING, cells) + " " * (room - cells)
        lines.append(f"  {name:<{label_width}}  {bar} {seconds(value):>9} {100 * share:5.1f} %")
    return lines


def time_parts(time: Time, *, shards: str = "FSDP") -> list[tuple[str, float]]:
    """Names and seconds of the parts of a step, which sum to it; those that take nothing are left out."""
    recompute, optimizer = time.recompute_s or 0.0, time.optimizer_s or 0.0
    parts = {
        "compute": (time.compute_s or 0.0) - recompute - optimizer,
        "recompute": recompute,
        "optimizer": optimizer,
    }
    exposed = time.per_axis or {"communication": time.exposed_comm_s or 0.0}
    names = AXES | {"dp_shard": shards}
    parts |= {f"exposed: {names.get(axis, axis)}": value for axis, value in exposed.items()}
    parts["pipeline bubble"] = time.bubble_s or 0.0
    return [(name, value) for name, value in parts.items() if value > 0 or name == "compute"]


def seconds(value: float) -> str:
    """Seconds of a part of a step: `12.3 s`, `0.45 s`, `4.2 ms`."""
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def _held(stage: Stage) -> tuple[int, ...]:
    """What a rank holds, in the order of the parts: each at its most, which is not at the same moment."""
    memory = stage.memory
    return (
        memory.static_bytes,
        memory.activations_bytes or 0,
        memory.logits_bytes or 0,
        memory.communication_bytes or 0,
    )


def _shares(parts: Sequence[int], whole: int, cells: int) -> list[int]:
    """Cells of each part: what stays all the time at its size, the others by their sizes in the rest."""
    first, *rest = parts
    static = min(cells, round(cells * first / whole)) if whole else 0
    left, total = cells - static, sum(rest)
    counts, begun = [static], 0
    for end in (sum(rest[: index + 1]) for index in range(len(rest))):
        upto = round(left * end / total) if total else 0
        counts.append(upto - begun)
        begun = upto
    return counts


def _alike(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Neighbouring pipeline ranks with equal numbers, or as many together as leave few enough bars."""
    groups = [list(alike) for _, alike in groupby(stages, key=lambda stage: (len(stage.layers), stage.memory))]
    if len(groups) <= _MOST_BARS:
        return groups
    together = -(-len(stages) // _MOST_BARS)
    return [list(stages[begin : begin + together]) for begin in range(0, len(stages), together)]


def _fullest(stages: Sequence[Stage]) -> Stage:
    return max(stages, key=lambda stage: stage.memory.needed_bytes)


def _stage_name(stages: Sequence[Stage], pp: int) -> str:
    if pp == 1:
        return "every rank"
    return f"pp {figures.ranges(tuple(stage.pp_rank for stage in stages))}"


def _packed(words: Sequence[str], lengths: Sequence[int], width: int) -> list[str]:
    """Words in as few lines as hold them; `lengths` are theirs without colour codes."""
    lines: list[str] = []
    used = width
    for word, length in zip(words, lengths, strict=True):
        if used + 2 + length > width:
            lines.append(f"  {word}")
            used = 2 + length
        else:
            lines[-1] += f"  {word}"
            used += 2 + length
    return lines


def _width(stream: TextIO) -> int:
    return max(_LEAST_WIDTH, report.width_of(stream))


def _write(lines: Sequence[str], stream: TextIO) -> None:
    if lines:
        stream.write("\n".join(lines) + "\n")
        stream.flush()
