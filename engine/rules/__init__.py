"""The one table of rules, and the report of a config judged by it.

Knows every law that a config must keep (one row each, by family) and how findings, plan and
settings make a report. Does not know where values came from (sources) or what runs (build).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import EXIT_CONFIG, Finding, exit_code
from engine.facts import Facts
from engine.features import Setting, settings
from engine.hardware import Cluster
from engine.keys import with_values
from engine.planner.plan import Plan
from engine.planner.stack import TITAN, Stack
from engine.rules.cluster import CLUSTER_RULES
from engine.rules.corpus import CORPUS_RULES
from engine.rules.degrees import DEGREE_RULES
from engine.rules.fit import FIT_RULES
from engine.rules.hardware import HARDWARE_RULES
from engine.rules.jobs import JOB_RULES
from engine.rules.mesh import MESH_RULES
from engine.rules.optimization import OPTIMIZATION_RULES
from engine.rules.pipeline import PIPELINE_RULES
from engine.rules.precision import PRECISION_RULES
from engine.rules.read_ahead import READ_AHEAD_RULES
from engine.rules.row import Rule
from engine.rules.sinks import SINK_RULES
from engine.rules.training import TRAINING_RULES
from engine.rules.watch import watched
from engine.rules.ways import Fit, fit_of
from engine.sources import Loaded, locate

__all__ = ["RULES", "Fit", "Report", "Rule", "check"]

RULES: tuple[Rule, ...] = (
    *DEGREE_RULES,
    *MESH_RULES,
    *PIPELINE_RULES,
    *TRAINING_RULES,
    *PRECISION_RULES,
    *OPTIMIZATION_RULES,
    *CORPUS_RULES,
    *READ_AHEAD_RULES,
    *HARDWARE_RULES,
    *CLUSTER_RULES,
    *JOB_RULES,
    *SINK_RULES,
    *FIT_RULES,
)


_REJECTS = {rule.id: rule.rejects for rule in RULES if rule.rejects}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is to be said about a config: findings, the plan where the config is sound, the features asked for."""

    findings: tuple[Finding, ...]
    plan: Plan | None
    settings: tuple[Setting, ...]
    fit: Fit | None = None

    @property
    def ok(self) -> bool:
        """Whether no error stands."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0, or 2 where the config is wrong, or 3 where it is sound and does not fit."""
        return exit_code(self.findings)

    def joined(self, findings: Iterable[Finding]) -> Report:
        """The report with what others than the rules found, in order; where that is an error of the config, no plan."""
        every = (*self.findings, *findings)
        plan = None if exit_code(every) == EXIT_CONFIG else self.plan
        return replace(self, findings=tuple(sorted(every, key=_order)), plan=plan)

    def to_json(self) -> dict[str, Any]:
        """The object of `titan validate --json`."""
        return {
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "plan": None if self.plan is None else self.plan.to_json(),
            "settings": [setting.to_json() for setting in self.settings],
            "fit": None if self.fit is None or self.plan is None else self.fit.to_json(),
        }


def check(loaded: Loaded, *, cluster: Cluster | None = None, stack: Stack = TITAN) -> Report:
    """Judges a loaded config by every rule, in one pass; `cluster` replaces the hardware of the config.

    `stack` is the implementation that is asked about: its plan is made and judged, by the rules that hold in it.
    Settings say what titan does with what it is asked for, so there are none for another stack. Rules that read
    a key that did not parse stay silent. The plan is there unless the config is wrong: hardware that is too small
    leaves it standing.
    """
    facts = Facts(loaded.config, cluster, stack=stack)
    rules = [rule for rule in RULES if stack.name in rule.stacks]
    findings, told = list(loaded.findings), list[Rule]()
    for rule in rules:
        if rule.needs == "plan" or _only_follows(rule, facts, told):
            continue
        if found := _judge(rule, loaded, facts):
            findings += found
            told.append(rule)
    sound = not loaded.broken and not any(
        finding.severity == "error" and not finding.is_hardware for finding in findings
    )
    plan: Plan | None = None
    if sound and facts.has("plan"):
        plan = facts.plan
        for rule in rules:
            if rule.needs == "plan":
                findings += _judge(rule, loaded, facts)
    findings.sort(key=_order)
    asked = settings(facts, findings, rejects=_REJECTS) if stack is TITAN else ()
    return Report(findings=tuple(findings), plan=plan, settings=asked, fit=None if plan is None else fit_of(facts))


def _judge(rule: Rule, loaded: Loaded, facts: Facts) -> list[Finding]:
    """The finding of one rule, if it is broken and what it read can be trusted."""
    reads: set[str] = set()
    if loaded.broken:
        facts = Facts(watched(loaded.config, reads), facts.given_cluster, stack=facts.stack)
    if not facts.has(rule.needs) or not rule.broken(facts) or _touches(reads, loaded.broken):
        return []
    message, fix = rule.says(facts)
    key = next((key for key in (rule.key, *rule.also) if _is_written(loaded, key)), rule.key)
    file, line, source = locate(loaded.origins, key)
    return [
        Finding(
            rule=rule.id,
            severity=rule.severity,
            key=key,
            message=message,
            fix=fix,
            file=file,
            line=line,
            source=source,
        )
    ]


def _only_follows(rule: Rule, facts: Facts, told: Iterable[Rule]) -> bool:
    """Whether the edit of a law that was told of already heals this one."""
    for cause in told:
        edit = cause.edit(facts) if cause.id in rule.follows else None
        if edit:
            mended = Facts(with_values(facts.config, edit), facts.given_cluster, stack=facts.stack)
            if mended.has(rule.needs) and not rule.broken(mended):
                return True
    return False


def _is_written(loaded: Loaded, key: str) -> bool:
    return key in loaded.origins and loaded.origins[key].kind != "default"


def _touches(reads: set[str], broken: frozenset[str]) -> bool:
    """Whether a key that was read did not parse, alone or with its section."""
    return any(
        read == key or read.startswith(f"{key}.") or key.startswith(f"{read}.") for read in reads for key in broken
    )


def _order(finding: Finding) -> tuple[bool, bool, str, int]:
    """Errors before warnings; what stands in a file before the rest, in the order of its lines."""
    return finding.severity != "error", finding.file is None, finding.file or "", finding.line or 0
