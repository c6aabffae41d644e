"""Where the seconds of a step go: what was measured beside what was planned, part by part.

Knows parts, their names and their order. Does not measure or plan: both stand in the Frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titancli import charts, figures
from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_ink import FAINT, PLAIN, Ink, Line, bar, cut_line, padded, width_of

_TINTS = {"compute": "blue", "data": "yellow", "host": "yellow", "bubble": "magenta", "other": FAINT}
_COMM_TINT = "cyan"
_NAMES = {"data": "data wait", "host": "slow host"}
_AXES = {"tp": "TP", "cp": "CP", "dp_shard": "FSDP", "dp_replicate": "DP", "pp": "PP"}
_LABEL_WIDTH = 14
_WIDEST_BAR = 40
_LEAST_BAR = 5
_MEASURED, _PLANNED = 16, 9
# Less is written as 0.0 ms.
_LEAST_S = 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step; None is not known."""

    name: str
    short: str
    measured_s: float | None
    planned_s: float | None
    tint: str

    @property
    def size_s(self) -> float:
        """What it is worth a line for."""
        return max(self.measured_s or 0.0, self.planned_s or 0.0)


def parts_of(frame: Frame) -> list[Part]:
    """The parts of a step in a fixed order; those that nothing is known of, or that take nothing, are left out."""
    measured, planned = (frame.time_s.get(name) or {} for name in ("measured", "planned"))
    parts = [_part(name, measured, planned) for name in ("compute", "data", "host")]
    measured_comm, planned_comm = (_axes(time) for time in (measured, planned))
    for axis in dict.fromkeys((*measured_comm, *planned_comm)):
        part = _part(axis, measured_comm, planned_comm)
        name = f"exposed {_AXES.get(axis, axis)}"
        parts.append(Part(name=name, short=axis, measured_s=part.measured_s, planned_s=part.planned_s, tint=_COMM_TINT))
    parts += [_part(name, measured, planned) for name in ("bubble", "other")]
    return [part for part in parts if part.size_s >= _LEAST_S]


def step_title(frame: Frame) -> str:
    """`where a step goes: 1.59 s, planned 1.53 s`."""
    measured, planned = _whole(frame, "measured"), _whole(frame, "planned")
    known = [charts.seconds(measured)] if measured else []
    known += [f"planned {charts.seconds(planned)}"] if planned else []
    return "where a step goes" + (f": {', '.join(known)}" if known else "")


def step_lines(frame: Frame, width: int, ink: Ink, *, height: int | None = None) -> list[Line]:
    """A line for each part, the largest ones where there are more than lines; one line in all where there is one."""
    parts = parts_of(frame)
    if not parts:
        return [cut_line((("no step was profiled yet, and none is planned in seconds", FAINT),), width, ink)]
    if height is not None and height <= 2:
        return [cut_line(line, width, ink) for line in _in_short(frame, parts, width)[:height]]
    is_split = (frame.time_s.get("measured") or {}).get("compute") is not None
    head = [] if is_split else [_not_profiled(width, ink)]
    room = None if height is None else height - 1 - len(head)
    shown = _largest(parts, room)
    which = "" if len(shown) == len(parts) else f"{len(shown)} of {len(parts)} parts"
    return [*_table(frame, shown, which, width, ink), *head]


def _not_profiled(width: int, ink: Ink) -> Line:
    return cut_line((("measured: n/a until a step is profiled, as metrics.breakdown_freq says", FAINT),), width, ink)


def _largest(parts: list[Part], room: int | None) -> list[Part]:
    if room is None or len(parts) <= room:
        return parts
    kept = sorted(parts, key=lambda part: -part.size_s)[: max(1, room)]
    return [part for part in parts if part in kept]


def _in_short(frame: Frame, parts: list[Part], width: int) -> list[Line]:
    """Shares of a step one after another, the largest first: `compute 82 %  tp 9 %`."""
    key = "measured" if _whole(frame, "measured") and any(part.measured_s for part in parts) else "planned"
    whole = _whole(frame, key) or sum(part.size_s for part in parts)
    lines: list[Line] = [((f"{key} " if key == "planned" else "time ", FAINT),)]
    sizes = [(part, part.measured_s if key == "measured" else part.planned_s) for part in parts]
    for part, size_s in sorted(sizes, key=lambda pair: -(pair[1] or 0.0)):
        if not size_s:
            continue
        said: Line = ((f"{part.short} ", FAINT), (f"{100 * size_s / whole:.0f} %  ", part.tint))
        if width_of(lines[-1]) + width_of(said) > width:
            lines.append(())
        lines[-1] = (*lines[-1], *said)
    return lines


def _table(frame: Frame, parts: list[Part], which: str, width: int, ink: Ink) -> list[Line]:
    """Measured bars beside planned ones, where both have room; else planned seconds beside measured bars."""
    longest = max((part.size_s for part in parts), default=0.0)
    is_planned = any(part.planned_s is not None for part in parts)
    free = width - _LABEL_WIDTH - _MEASURED - (2 + _PLANNED if is_planned else 0)
    has_two = is_planned and free >= 2 * _LEAST_BAR
    room = min(_WIDEST_BAR, max(0, free // 2 if has_two else free))
    lines = [cut_line(_head(which, room, is_planned=is_planned, has_two=has_two), width, ink)]
    for part in parts:
        line: Line = ((padded(part.name, _LABEL_WIDTH), PLAIN),)
        line += _measured(part, _whole(frame, "measured"), longest, room, ink)
        if is_planned:
            line += _planned(part, longest, room if has_two else 0, ink)
        lines.append(cut_line(line, width, ink))
    return lines


def _head(which: str, room: int, *, is_planned: bool, has_two: bool) -> Line:
    planned = ("  planned" if has_two else f"  {'planned':>{_PLANNED}}") if is_planned else ""
    return ((padded(which, _LABEL_WIDTH) + padded("measured", room + _MEASURED) + planned, FAINT),)


def _measured(part: Part, whole_s: float | None, longest_s: float, room: int, ink: Ink) -> Line:
    drawn = padded(bar(part.measured_s, longest_s, room, ink), room)
    return (drawn, part.tint), (_figures(part.measured_s, whole_s), PLAIN)


def _planned(part: Part, longest_s: float, room: int, ink: Ink) -> Line:
    size = bar(part.planned_s, longest_s, room, ink)
    return (f"  {padded(ink.planned * len(size), room)}", part.tint), (f"{_seconds(part.planned_s):>{_PLANNED}}", FAINT)


def _figures(value_s: float | None, whole_s: float | None) -> str:
    """Seconds and share of the step, in `_MEASURED` columns."""
    share = f"{100 * value_s / whole_s:.1f} %" if value_s is not None and whole_s else ""
    return f"{_seconds(value_s):>9}{share:>7}"


def _seconds(value_s: float | None) -> str:
    return figures.NOT_KNOWN if value_s is None else charts.seconds(value_s)


def _part(name: str, measured: Mapping[str, Any], planned: Mapping[str, Any]) -> Part:
    return Part(
        name=_NAMES.get(name, name),
        short=name,
        measured_s=_number(measured.get(name)),
        planned_s=_number(planned.get(name)),
        tint=_TINTS.get(name, PLAIN),
    )


def _axes(time: Mapping[str, Any]) -> Mapping[str, Any]:
    told = time.get("exposed_comm")
    return told if isinstance(told, dict) else {}


def _whole(frame: Frame, key: str) -> float | None:
    return _number((frame.time_s.get(key) or {}).get("step"))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
