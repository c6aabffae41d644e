"""The rules, run while a config is still being made: what an answer broke, and the edit that mends it.

Knows which keys a rule reads, so that one which reads a key that is still to be answered stays silent. Does not know
the search: rules about a plan are its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from engine.errors import Finding
from engine.facts import Facts
from engine.rules import RULES
from engine.rules.watch import watched
from engine.sources import Loaded, locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A finding about the config so far, and the dotted keys that mend it; `edit` is None without any one fix."""

    finding: Finding
    edit: dict[str, Any] | None

    @property
    def is_error(self) -> bool:
        """Whether it cannot stay."""
        return self.finding.severity == "error"


def doubts_about(loaded: Loaded, *, unanswered: Collection[str]) -> tuple[Doubt, ...]:
    """What every rule says that reads none of the keys still to be answered; errors first."""
    facts = Facts(loaded.config)
    found: list[Doubt] = []
    for rule in RULES:
        if rule.needs == "plan" or not facts.has(rule.needs) or not rule.broken(facts):
            continue
        reads: set[str] = set()
        noted = Facts(watched(loaded.config, reads))
        if noted.has(rule.needs):
            rule.broken(noted)
        if reads & set(unanswered):
            continue
        message, fix = rule.says(facts)
        key = next((key for key in (rule.key, *rule.also) if loaded.origins[key].kind != "default"), rule.key)
        file, line, source = locate(loaded.origins, key)
        finding = Finding(
            rule=rule.id,
            severity=rule.severity,
            key=key,
            message=message,
            fix=fix,
            file=file,
            line=line,
            source=source,
        )
        found.append(Doubt(finding=finding, edit=rule.edit(facts)))
    return tuple(sorted(found, key=lambda doubt: not doubt.is_error))
