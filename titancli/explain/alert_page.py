"""An alert of `titan monitor` as a page: what it says, why, and what helps.

Knows the order of the words. They are those of the table of alerts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.keys import field_docs
from titancli import report
from titancli.explain.pages import labelled
from titancli.explain.rule_page import form
from titancli.families import family_of
from titancli.monitor.alerts import ALERTS

if TYPE_CHECKING:
    from titancli.monitor.alerts.alert import Alert


def alert_named(name: str) -> Alert:
    """The row of an alert that is there."""
    return next(alert for alert in ALERTS if alert.id == name)


def alert_page(alert: Alert, *, width: int, colour: bool) -> list[str]:
    """The page of an alert; it is of a run, and no config alone raises it."""
    fixes = fixes_of(alert)
    rows = [
        ("says", form(alert.message)),
        ("why", alert.why),
        *(("fix" if place == 0 else "or", text) for place, text in enumerate(fixes)),
        *([("key", f"{alert.key}: {field_docs()[alert.key]}")] if alert.key else []),
        ("told by", "titan monitor, of a run"),
        ("about", family_of(alert.id)),
    ]
    head = f"{alert.id}, {'an error' if alert.severity == 'error' else 'a warning'} about a run"
    lines = [report.paint(head, report.BOLD, colour)]
    for name, text in rows:
        lines += labelled(name, text, width)
    return lines


def alert_json(alert: Alert) -> dict[str, Any]:
    """The same as an object."""
    return {
        "id": alert.id,
        "family": family_of(alert.id),
        "key": alert.key,
        "severity": alert.severity,
        "message": alert.message,
        "fixes": fixes_of(alert),
        "why": alert.why,
    }


def fixes_of(alert: Alert) -> list[str]:
    """What may help, the first first; of the changes, what the laws of a config and its plan let through."""
    return [*(way.told for way in alert.ways), *([form(alert.fix)] if alert.fix else [])]
