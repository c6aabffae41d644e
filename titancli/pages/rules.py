"""The page of all rules: what each says, what to do, and why.

Knows the order of the page. The words are those of the rule table.
"""

from __future__ import annotations

from itertools import groupby

from engine.errors import Finding
from engine.rules import RULES, Rule
from engine.rules.row import EVERY_STACK
from titancli.families import FAMILIES
from titancli.pages.markdown import form, prose, text


def page() -> str:
    """The page: a heading for each family and each rule."""
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
