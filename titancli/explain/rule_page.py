"""A rule as a page: what it says, why, the way out, and whether a config breaks it.

Knows the order of the words. They are those of the rule table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from engine.keys import field_docs
from engine.rules import RULES, Rule
from engine.rules.row import EVERY_STACK
from titancli import report
from titancli.explain.pages import labelled
from titancli.explain.seen import origin_in_words, value_in_words
from titancli.families import family_of

if TYPE_CHECKING:
    from engine.errors import Finding
    from titancli.explain.seen import Seen

State: TypeAlias = Literal["broken", "kept", "not judged"]

# A place in the text of a rule, for a number of the config: `{shape.n_kv_heads}`, `{share:.0f}`.
_PLACE = re.compile(r"\{([\w.]+)[^}]*\}")
_TINTS: dict[State, str] = {"broken": report.RED, "kept": report.GREEN, "not judged": report.YELLOW}


def rule_named(name: str) -> Rule:
    """The row of a rule that is there."""
    return next(rule for rule in RULES if rule.id == name)


def rule_page(rule: Rule, seen: Seen | None, *, width: int, colour: bool) -> list[str]:
    """The page of a rule; `seen` is the config that it is asked about, if any."""
    rows = [
        ("says", form(rule.message)),
        ("why", rule.why),
        ("fix", form(rule.fix)),
        *_keys(rule, seen),
    ]
    if rule.stacks != EVERY_STACK:
        rows.append(("holds in", ", ".join(rule.stacks)))
    if rule.rejects:
        rows.append(("rejects", ", ".join(rule.rejects)))
    rows.append(("about", family_of(rule.id)))
    lines = [report.paint(f"{rule.id}, {'an error' if rule.severity == 'error' else 'a warning'}", report.BOLD, colour)]
    for name, text in rows:
        lines += labelled(name, text, width)
    return lines if seen is None else [*lines, "", *_here(rule, seen, width=width, colour=colour)]


def rule_json(rule: Rule, seen: Seen | None) -> dict[str, Any]:
    """The rule as an object; `here` is null without a config."""
    return {
        "id": rule.id,
        "family": family_of(rule.id),
        "key": rule.key,
        "also": list(rule.also),
        "severity": rule.severity,
        "message": rule.message,
        "fix": rule.fix,
        "why": rule.why,
        "needs": rule.needs,
        "rejects": list(rule.rejects),
        "stacks": list(rule.stacks),
        "here": None if seen is None else _here_json(rule, seen),
    }


def state_of(rule: Rule, seen: Seen) -> State:
    """Whether a config breaks a rule; not judged where what it builds on is wrong itself."""
    if _finding(rule, seen) is not None:
        return "broken"
    lacks_plan = rule.needs == "plan" and seen.plan is None
    return "not judged" if seen.loaded.broken or lacks_plan or not seen.facts.has(rule.needs) else "kept"


def _here_json(rule: Rule, seen: Seen) -> dict[str, Any]:
    finding = _finding(rule, seen)
    return {"state": state_of(rule, seen), "finding": None if finding is None else finding.to_json()}


def _finding(rule: Rule, seen: Seen) -> Finding | None:
    return next((finding for finding in seen.report.findings if finding.rule == rule.id), None)


def form(text: str) -> str:
    """The text of a rule before it meets a config: places for its numbers in angle brackets."""
    return _PLACE.sub(lambda place: f"<{place[1].rpartition('.')[2]}>", text)


def _keys(rule: Rule, seen: Seen | None) -> list[tuple[str, str]]:
    """The keys that it is about: with their texts, or with what a config has there."""
    if seen is None:
        return [("key", f"{key}: {field_docs()[key]}") for key in (rule.key, *rule.also)]
    return [
        ("key", f"{answer.key} = {value_in_words(answer.value)} ({origin_in_words(answer.origin)})")
        for answer in seen.explained((rule.key, *rule.also))
    ]


def _here(rule: Rule, seen: Seen, *, width: int, colour: bool) -> list[str]:
    """Whether the config breaks it, and its finding there."""
    state, finding = state_of(rule, seen), _finding(rule, seen)
    text = {
        "broken": f"  broken in {seen.named}",
        "kept": f"  kept in {seen.named}",
        "not judged": f"  not judged in {seen.named}: what it builds on is wrong itself",
    }[state]
    lines = [report.paint(line, _TINTS[state], colour) for line in report.wrapped(text, width, indent=2)]
    if finding is not None:
        lines += [*labelled("says", finding.message, width), *labelled("fix", finding.fix, width)]
    return lines
