"""What is wrong, the worst first, and the way out of each.

Knows how an alert is laid out. Does not know what is one (alerts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from titancli import figures
from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_ink import BAD, DOUBTFUL, FAINT, GOOD, Ink, Line, cells, cut_line
from titancli.report import printable, shortened, wrapped

_FIX = "; fix: "
_LONGEST = 2000
_LEAST_WIDTH = 20


@dataclass(frozen=True, slots=True)
class _Alert:
    """What an alert says and its fix, in lines."""

    said: list[Line]
    fix: list[Line]

    @property
    def lines(self) -> list[Line]:
        return [*self.said, *self.fix]


def alert_lines(frame: Frame, width: int, ink: Ink, *, height: int | None = None) -> list[Line]:
    """Every alert with its fix below it; in few lines as many as have room, and how many more there are."""
    alerts = [_alert(alert, _tint(alert, frame), width, ink) for alert in frame.alerts]
    lines = [line for alert in alerts for line in alert.lines]
    if height is None or len(lines) <= height:
        return lines
    kept = _kept(alerts, height)
    if not kept:
        return _squeezed(alerts[0], width, ink, height)
    lines = [line for alert in kept for line in alert.lines]
    more = ((f"{ink.more} {len(alerts) - len(kept)} more: a shows all", FAINT),)
    return [*lines, more] if len(lines) < height else lines


def alert_title(frame: Frame) -> str:
    """`1 alert`, or `3 alerts`."""
    return figures.many(len(frame.alerts), "alert")


def _kept(alerts: Sequence[_Alert], height: int) -> list[_Alert]:
    """The first alerts that have room as a whole."""
    kept: list[_Alert] = []
    for alert in alerts:
        height -= len(alert.lines)
        if height < 0:
            break
        kept.append(alert)
    return kept


def _squeezed(alert: _Alert, width: int, ink: Ink, height: int) -> list[Line]:
    """The beginning of what an alert says, and of its fix where there is more than one line."""
    said = _first(alert.said, height - 1 if alert.fix and height > 1 else height, width, ink)
    return [*said, *_first(alert.fix, height - len(said), width, ink)]


def _first(lines: list[Line], count: int, width: int, ink: Ink) -> list[Line]:
    """The first lines; the last one shows where others are left out."""
    if len(lines) <= count or count < 1:
        return lines[: max(0, count)]
    *before, last = lines[:count]
    return [*before, cut_line((*last, (f" {ink.more}", FAINT)), width, ink)]


def _tint(alert: str, frame: Frame) -> str:
    rule = alert.partition(":")[0]
    is_error = any(finding.get("rule") == rule and finding.get("severity") == "error" for finding in frame.findings)
    return BAD if is_error or " failed first: " in alert else DOUBTFUL


def _alert(text: str, tint: str, width: int, ink: Ink) -> _Alert:
    said, _, fix = (shortened(part, _LONGEST) for part in printable(text).partition(_FIX))
    parts = said.splitlines() or [""]
    lines = [line for n, part in enumerate(parts) for line in _wrapped(part, width, indent=2, begins=2 if n else 0)]
    fixes = _wrapped(f"fix: {fix}", width, indent=7, begins=2) if fix else []
    return _Alert(
        *([cut_line(((line, of),), width, ink) for line in told] for told, of in ((lines, tint), (fixes, GOOD)))
    )


def _wrapped(text: str, width: int, *, indent: int, begins: int) -> list[str]:
    width = max(_LEAST_WIDTH, width)
    lines = wrapped(f"{' ' * begins}{text}", width, indent=indent)
    return [piece for line in lines for piece in _broken(line, width, indent)]


def _broken(line: str, width: int, indent: int) -> Iterator[str]:
    """A line in pieces that have room: a path may be longer than a line, and signs of East Asia are twice as wide."""
    from rich.cells import chop_cells

    while cells(line) > width:
        piece, *rest = chop_cells(line, width)
        yield piece.rstrip()
        line = " " * indent + "".join(rest).lstrip()
    yield line
