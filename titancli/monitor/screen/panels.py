"""A frame without a screen around it: panels below each other, or one plain line.

Knows the order of panels where nothing is cut. Does not compute any figure: what it shows stands in the Frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from titancli import figures
from titancli.monitor.follow import ENDED
from titancli.monitor.frame import Frame
from titancli.monitor.screen.layout import BOX_SIDES
from titancli.monitor.screen.panels_alerts import alert_lines, alert_title
from titancli.monitor.screen.panels_ink import DOUBTFUL, FAINT, PLAIN, SIGNS, Ink, Line, curve, cut, text_of
from titancli.monitor.screen.panels_ranks import rank_table
from titancli.monitor.screen.panels_run import headline, progress, run_lines, tint_of
from titancli.monitor.screen.panels_step import step_lines, step_title
from titancli.report import speed_unit

if TYPE_CHECKING:
    from rich.console import Group
    from rich.panel import Panel

__all__ = ["curve", "line", "most_used_bytes", "panels", "progress"]

_MOST_ROWS = 16


def panels(frame: Frame, *, width: int = 80, ink: Ink = SIGNS) -> Group:
    """The frame as panels of `width` columns: the run, alerts where there are any, its step, and its worst ranks."""
    from rich.console import Group

    inner = width - BOX_SIDES
    parts = [_panel(run_lines(frame, inner, ink), headline(frame, ink), width, ink, tint=tint_of(frame))]
    if frame.alerts:
        parts.append(_panel(alert_lines(frame, inner, ink), alert_title(frame), width, ink, tint=DOUBTFUL))
    parts.append(_panel(step_lines(frame, inner, ink), step_title(frame), width, ink))
    table = rank_table(frame, inner, ink, most=_MOST_ROWS, order="rank" if len(frame.ranks) <= _MOST_ROWS else "worst")
    title = (
        "ranks" if table.shown == table.count else f"the {table.shown} worst of {table.count:,} ranks; --json has all"
    )
    parts.append(_panel(table.lines, title, width, ink))
    return Group(*parts)


def line(frame: Frame) -> str:
    """The frame as one plain line, for output that is not a terminal."""
    seen = frame.seen
    return "  ".join(
        (
            frame.state,
            f"step {progress(frame)}",
            f"loss {figures.loss(seen.loss)}",
            f"grad norm {figures.loss(seen.grad_norm)}",
            f"{figures.rate(seen.tokens_per_s_per_gpu)} {speed_unit(seen.gpu)}",
            f"memory {figures.memory(most_used_bytes(frame))}",
            *(() if frame.state in ENDED else (f"left {figures.duration(frame.eta_s)}",)),
        )
    )


def most_used_bytes(frame: Frame) -> int | None:
    """Memory of the rank that uses most; None where none said."""
    return max((row["used_bytes"] for row in frame.ranks if row["used_bytes"] is not None), default=None)


def _panel(lines: list[Line] | tuple[Line, ...], title: str, width: int, ink: Ink, *, tint: str = PLAIN) -> Panel:
    from rich.panel import Panel
    from rich.text import Text

    said = Text(cut(title, width - 8, ink), style=f"bold {tint}".strip())
    return Panel(text_of(lines), title=said, title_align="left", border_style=tint or FAINT, width=width)
