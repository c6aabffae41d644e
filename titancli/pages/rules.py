"""The page of all rules and alerts: what each says, what to do, and why.

Knows the order of the page. The words are those of the tables of rules and of alerts.
"""

from __future__ import annotations

from itertools import groupby

from engine.errors import Finding
from engine.rules import RULES, Rule
from engine.rules.row import EVERY_STACK
from titancli.explain.alert_page import fixes_of
from titancli.families import FAMILIES
from titancli.monitor.alerts import ALERTS
from titancli.monitor.alerts.alert import Alert
from titancli.pages.markdown import form, prose, text


def page() -> str:
    """The page: a heading for each family and each rule, then for each alert."""
    lines = [
        "# Every rule",
        "",
        "What `titan validate` judges a config by, all in one pass. `<so>` stands for what a config has there. "
        "Errors of the families H and M end with exit code 3, other errors with 2, warnings with 0.",
    ]
    for family, rules in groupby(sorted(RULES, key=lambda rule: rule.id), key=lambda rule: rule.id[0]):
        lines += ["", f"## {FAMILIES[family]}"]
        for rule in rules:
            lines += ["", *_rule(rule)]
    lines += [
        "",
        f"## {FAMILIES['W']}",
        "",
        "What `titan monitor` says of a run, worst first. Of the changes that a fix names, it offers the first that "
        "the run's own config, its rules and its plan let through, with what it gains by plan.",
    ]
    for alert in sorted(ALERTS, key=lambda alert: alert.id):
        lines += ["", *_alert(alert)]
    return text(lines)


def _rule(rule: Rule) -> list[str]:
    finding = Finding(
        rule=rule.id, severity=rule.severity, key=rule.key, message=form(rule.message), fix=form(rule.fix)
    )
    lines = [f"### {rule.id}", "", "```", *str(finding).splitlines(), "```", "", f"Why: {prose(rule.why)}."]
    notes = []
    if rule.also:
        notes.append(f"Also at {', '.join(f'`{key}`' for key in rule.also)}.")
    if rule.rejects:
        notes.append(f"While it is broken, {', '.join(f'`{key}`' for key in rule.rejects)} cannot be in force.")
    if rule.stacks != EVERY_STACK:
        notes.append(f"Holds in {', '.join(rule.stacks)}.")
    return [*lines, *(["", " ".join(notes)] if notes else [])]


def _alert(alert: Alert) -> list[str]:
    finding = Finding(rule=alert.id, severity=alert.severity, key=alert.key, message=form(alert.message), fix="")
    fixes = [f"  {'fix' if place == 0 else ' or'}: {fix}" for place, fix in enumerate(fixes_of(alert))]
    lines = [f"### {alert.id}", "", "```", *str(finding).splitlines(), *fixes, "```", ""]
    return [*lines, f"Why: {prose(alert.why)}."]
