"""A config as `titan explain-config` looks at it: read, judged, planned.

Knows where a value was written, in words, and which rules judge a key. Does not draw.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.explain import Explained, explained
from engine.facts import Facts
from engine.planner.wires import Wire, wires
from engine.reading.toml_text import toml_value
from engine.rules import RULES, Report, Rule
from engine.sources import Loaded, Origin
from titancli.explain.shares import axis_keys

if TYPE_CHECKING:
    from engine.planner.plan import Plan


@dataclass(frozen=True)
class Seen:
    """A loaded config with its report; `named` is how a person named it, None where nobody named a config."""

    loaded: Loaded
    report: Report
    named: str | None

    @property
    def plan(self) -> Plan | None:
        """The plan, where the config is sound."""
        return self.report.plan

    @cached_property
    def facts(self) -> Facts:
        """What rules judge."""
        return Facts(self.loaded.config)

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """Who talks to whom; nobody without a plan."""
        plan = self.plan
        return () if plan is None else wires(self.loaded.config, self.facts.known_cluster, plan)

    def explained(self, keys: Collection[str] | None = None) -> tuple[Explained, ...]:
        """The answers for keys, or for all."""
        return explained(self.loaded, self.report, keys=keys)

    def wire_of(self, key: str) -> Wire | None:
        """The axis whose degree a key is, where it has more than one rank."""
        return next((wire for wire in self.wires if axis_keys(wire.axis)[0] == key), None)

    def state_of(self, key: str) -> dict[str, str] | None:
        """What became of a setting that was asked for."""
        found = next((setting for setting in self.report.settings if setting.key == key), None)
        return None if found is None else {"state": found.state, "reason": found.reason}

    def value_in_words(self, answer: Explained) -> str:
        """Its value as TOML writes it; where what is written cannot be used, what stands in its place."""
        words = value_in_words(answer.value)
        return f"{words} in place of what is written" if answer.key in self.loaded.broken else words

    def to_json(self, answer: Explained) -> dict[str, Any]:
        """One key for `--json`: its answer first, then its state, its rules and what its axis sends."""
        wire = self.wire_of(answer.key)
        return {
            **answer.to_json(),
            "broken": answer.key in self.loaded.broken,
            "setting": self.state_of(answer.key),
            "rules": [{"id": rule.id, "severity": rule.severity, "why": rule.why} for rule in rules_of(answer.key)],
            "sends": None if wire is None else wire.to_json(),
        }


def rules_of(key: str) -> tuple[Rule, ...]:
    """The rules that judge a key: those that point at it, and those that it can be the cause of."""
    return tuple(rule for rule in RULES if key == rule.key or key in rule.also)


def origin_in_words(origin: Origin) -> str:
    """`run.toml:14`, `environment TITAN_TRAINING__SEQ_LEN`, `flag --training.seq_len`, `default`."""
    file, line, source = origin.place
    if file is None:
        return source or origin.kind
    return f"{file}:{line}" if line else file


def value_in_words(value: Any) -> str:
    """A value as TOML writes it; `left out` where there is none."""
    return "left out" if value is None else toml_value(value)
