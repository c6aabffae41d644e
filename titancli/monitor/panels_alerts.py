"""What is wrong, the worst first, and the way out of each.

Knows how an alert is laid out. Does not know what is one (alerts).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from titancli import figures
from titancli.monitor.frame import Frame
from titancli.monitor.panels_ink import BAD, DOUBTFUL, FAINT, GOOD, Ink, Line, cut_line
from titancli.report import printable

_FIX = "; fix: "
_LONGEST = 2000


def alert_lines(frame: Frame, width: int, ink: Ink, *, height: int | None = None) -> list[Line]:
    """Every alert with its fix below it; in few lines as many as have room, and how many more there are."""
    alerts = [_alert(alert, _tint(alert, frame), width, ink) for alert in frame.alerts]
    lines = [line for alert in alerts for line in alert]
    if height is None or len(lines) <= height:
        return lines
    return _shortened(alerts, height, ink)


def alert_title(frame: Frame) -> str:
    """`alerts`, or `3 alerts`."""
    return figures.many(len(frame.alerts), "alert")


def _shortened(alerts: Sequence[list[Line]], height: int, ink: Ink) -> list[Line]:
    """The first alerts as a whole, and how many more there are, where a line is left for it."""
    kept: list[list[Line]] = []
    room = height
    for alert in alerts:
        if room < len(alert):
            break
        kept.append(alert)
        room -= len(alert)
    if not kept:
        kept = [alerts[0][:height]]
        room = height - len(kept[0])
    left = len(alerts) - len(kept)
    lines = [line for alert in kept for line in alert]
    return [*lines, ((f"{ink.more} {left} more: a shows all", FAINT),)] if left and room else lines


def _tint(alert: str, frame: Frame) -> str:
    rule = alert.partition(":")[0]
    is_error = any(finding.get("rule") == rule and finding.get("severity") == "error" for finding in frame.findings)
    return BAD if is_error or " failed first: " in alert else DOUBTFUL


def _alert(text: str, tint: str, width: int, ink: Ink) -> list[Line]:
    said, _, fix = printable(text[:_LONGEST]).partition(_FIX)
    lines: list[Line] = [((line, tint),) for line in _wrapped(said, width, "", "  ")]
    if fix:
        lines += [((line, GOOD),) for line in _wrapped(f"fix: {fix}", width, "  ", "       ")]
    return [cut_line(line, width, ink) for line in lines]


def _wrapped(text: str, width: int, first: str, later: str) -> list[str]:
    lines: list[str] = []
    for part in text.splitlines() or [""]:
        lines += textwrap.wrap(
            part,
            max(10, width),
            initial_indent=later if lines else first,
            subsequent_indent=later,
            break_on_hyphens=False,
            break_long_words=True,
        )
    return lines
