"""A whole screen: what stands on it of a Frame, at a size, as somebody wants to see it. Pure.

Knows how panels go together. Does not know what stands in one (panels), nor when it is drawn (watching).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titancli import figures
from titancli.monitor.follow import ENDED
from titancli.monitor.frame import Frame
from titancli.monitor.screen.layout import Needs, Places, arranged, frames_of, inner_width
from titancli.monitor.screen.panels_alerts import alert_lines, alert_title
from titancli.monitor.screen.panels_help import help_lines
from titancli.monitor.screen.panels_ink import (
    DOUBTFUL,
    FAINT,
    GOOD,
    PLAIN,
    STRONG,
    Ink,
    Line,
    cells,
    cut,
    spread,
    text_of,
    width_of,
)
from titancli.monitor.screen.panels_ranks import RankTable, rank_table, wanted_lines
from titancli.monitor.screen.panels_run import headline, run_lines, short_lines, tint_of
from titancli.monitor.screen.panels_step import step_lines, step_title
from titancli.monitor.screen.view import Extent, View

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.layout import Layout

_MOST_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A screen, and what of the ranks, or of a longer page, is to be seen on it."""

    picture: RenderableType
    extent: Extent


def drawing(frame: Frame, columns: int, rows: int, *, view: View, ink: Ink, has_keys: bool = True) -> Drawn:
    """The screen of `columns` x `rows`; its last line tells the keys."""
    body = max(1, rows - 1)
    parts, extent = (_panels if view.shows == "panels" else _page)(frame, columns, body, view, ink)
    if rows > body:
        parts = [*parts, (_text([_keys(frame, columns, view, ink, has_keys=has_keys)]), 1)]
    return Drawn(picture=_column(parts, rows), extent=extent)


# ── the usual screen ──


def _panels(
    frame: Frame, columns: int, rows: int, view: View, ink: Ink
) -> tuple[list[tuple[RenderableType, int]], Extent]:
    half, whole = (inner_width(columns, rows, is_half=is_half) for is_half in (True, False))
    needs = Needs(
        run=len(run_lines(frame, half, ink)),
        run_short=short_lines(frame, half, ink),
        step=len(step_lines(frame, half, ink)),
        alerts=len(alert_lines(frame, whole, ink, height=_MOST_LINES)),
        ranks=wanted_lines(frame, whole),
    )
    places = arranged(columns, rows, needs)
    first, *later = _upper(frame, columns, half, places, ink)
    lines = alert_lines(frame, whole, ink, height=places.alerts)
    alerts = [_panel(lines, alert_title(frame), places, "alerts", columns, ink, tint=DOUBTFUL)] if lines else []
    parts = [first, *alerts, *later]
    if not places.ranks:
        return parts, Extent()
    table = rank_table(
        frame,
        whole,
        ink,
        height=places.ranks,
        top=view.top,
        order=view.order,
        is_reversed=view.is_reversed,
    )
    parts.append(_panel(table.lines, _rank_title(table, view), places, "ranks", columns, ink))
    return parts, Extent(first=table.first, last=table.last, count=table.count)


def _upper(frame: Frame, columns: int, half: int, places: Places, ink: Ink) -> list[tuple[RenderableType, int]]:
    """The run and where its step goes, below each other or side by side."""
    from rich.layout import Layout

    room = max(places.run, places.step) if places.is_wide else places.run
    run = _panel(
        run_lines(frame, half, ink, height=room),
        headline(frame, ink),
        places,
        "run",
        columns // 2 if places.is_wide else columns,
        ink,
        tint=tint_of(frame),
        right=_alert_count(frame),
        inner=room,
    )
    if not places.step:
        return [run]
    room = room if places.is_wide else places.step
    step = _panel(
        step_lines(frame, half, ink, height=room),
        step_title(frame),
        places,
        "step",
        columns - columns // 2 if places.is_wide else columns,
        ink,
        inner=room,
    )
    if not places.is_wide:
        return [run, step]
    row = Layout()
    row.split_row(Layout(run[0], size=columns // 2), Layout(step[0]))
    return [(row, max(run[1], step[1]))]


def _panel(
    lines: Sequence[Line],
    title: str,
    places: Places,
    name: str,
    width: int,
    ink: Ink,
    *,
    tint: str = PLAIN,
    right: Line = (),
    inner: int | None = None,
) -> tuple[RenderableType, int]:
    """Lines under their title, as the size of the screen allows, and how many lines that takes."""
    inner = inner if inner is not None else int(getattr(places, name))
    height = inner + places.overhead(name)
    if places.frames == "boxed":
        return _box(lines, title, width, ink, tint=tint, right=right), height
    if not places.overhead(name):
        return _text(lines), height
    return _text([_rule(title, width, ink, tint=tint, right=right), *lines]), height


def _box(lines: Sequence[Line], title: str, width: int, ink: Ink, *, tint: str, right: Line = ()) -> RenderableType:
    from rich.panel import Panel
    from rich.text import Text

    said = "".join(text for text, _ in right)
    return Panel(
        _text(lines),
        title=Text(cut(title, width - 8 - cells(said), ink), style=f"bold {tint}".strip()),
        title_align="left",
        subtitle=text_of([right]) if right else None,
        subtitle_align="right",
        border_style=tint or FAINT,
    )


def _rule(title: str, width: int, ink: Ink, *, tint: str, right: Line) -> Line:
    """A title with a line behind it."""
    end: Line = ((" ", PLAIN), *right) if right and cells(title) + width_of(right) < width else ()
    room = width - width_of(end)
    said = cut(title, room, ink)
    line = ink.dash * max(0, room - cells(said) - 1)
    return (said, f"bold {tint}".strip()), (f" {line}" if line else "", FAINT), *end


def _alert_count(frame: Frame) -> Line:
    if frame.alerts:
        return ((alert_title(frame), DOUBTFUL),)
    return () if frame.state in ENDED or frame.seen.step is None else (("no alerts", GOOD),)


def _rank_title(table: RankTable, view: View) -> str:
    order = {"worst": "worst first", "rank": "by number"}.get(view.order, f"by {view.order}")
    around = ", turned around" if view.is_reversed else ""
    whole = table.shown == table.count
    which = (
        figures.many(table.count, "rank") if whole else f"ranks {table.first + 1:,}-{table.last:,} of {table.count:,}"
    )
    return f"{which}, {order}{around}" if table.count > 1 else which


# ── a page over it ──


def _page(
    frame: Frame, columns: int, rows: int, view: View, ink: Ink
) -> tuple[list[tuple[RenderableType, int]], Extent]:
    """All alerts, or the help, from line `top` on."""
    frames = frames_of(columns, rows)
    width = inner_width(columns, rows)
    is_help = view.shows == "help"
    lines = help_lines(width, ink) if is_help else alert_lines(frame, width, ink) or [(("no alerts", GOOD),)]
    around = 2 if frames == "boxed" else 1
    room = max(1, rows - around)
    first = max(0, min(view.top, len(lines) - room))
    shown = lines[first : first + room]
    title = "help" if is_help else f"{headline(frame, ink)} {ink.dot} {alert_title(frame)}"
    tint = PLAIN if is_help else DOUBTFUL if frame.alerts else GOOD
    if frames == "boxed":
        picture = _box(shown, title, columns, ink, tint=tint)
    else:
        picture = _text([_rule(title, columns, ink, tint=tint, right=()), *shown])
    return [(picture, rows)], Extent(first=first, last=first + len(shown), count=len(lines))


# ── the last line ──


def _keys(frame: Frame, columns: int, view: View, ink: Ink, *, has_keys: bool) -> Line:
    """The keys that are of use now, and when the run was last heard of."""
    if not has_keys:
        said = [("Ctrl-C", "leave")]
    elif view.shows != "panels":
        said = [("q", "leave"), ("?" if view.shows == "help" else "a", "back"), (ink.arrows, "scroll")]
    else:
        said = [("q", "leave"), ("?", "help"), ("s", "sort"), ("n/p", "page"), ("a", "alerts"), ("space", "hold")]
    left: list[tuple[str, str]] = []
    for key, does in said:
        space = "   " if left else ""
        if sum(cells(text) for text, _ in left) + cells(f"{space}{key} {does}") <= columns:
            left += [(f"{space}{key} ", STRONG), (does, FAINT)]
    heard = _heard(frame) if columns >= 80 or not has_keys else ""
    right: Line = (("held: space goes on", f"{STRONG} {DOUBTFUL}"),) if view.is_held else ((heard, FAINT),)
    return spread(tuple(left), right, columns, ink)


def _heard(frame: Frame) -> str:
    last = frame.seen.last_time
    if frame.state in ENDED or last is None:
        return ""
    return f"heard of {figures.duration(max(0.0, frame.time - last))} ago"


# ── rich ──


def _text(lines: Sequence[Line]) -> RenderableType:
    return text_of(lines)


def _column(parts: Sequence[tuple[RenderableType, int]], rows: int) -> Layout:
    """Parts below each other, each with its lines; what is left stays empty above the last one."""
    from rich.layout import Layout

    *upper, last = [Layout(picture, size=height) for picture, height in parts if height > 0]
    free = rows - sum(height for _, height in parts)
    whole = Layout()
    whole.split_column(*upper, *([Layout(" ", size=free)] if free > 0 else []), last)
    return whole
