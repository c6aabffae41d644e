"""The form of an alert: one row of the table, what it looks at, and how its text is filled in.

Knows how a row becomes findings, worst first. Does not know any row (alerts), nor where figures come from (diagnosis).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from engine.errors import Finding, Severity
from titancli.monitor.alerts.advice import LEAST_GAIN_PCT, Advice, Edit, Offer, advice_of
from titancli.monitor.diagnosis import Diagnosis
from titancli.monitor.follow import State
from titancli.monitor.run_state import Failure, RunState

# Nobody stops a run that goes as planned for less.
_WORTH_CHANGING_PCT = 3.0


@dataclass(frozen=True)
class Look:
    """All that alerts are judged by: what the run told, its folder's files, its rows, and what they come to."""

    run: str
    seen: RunState
    state: State
    failure: Failure | None
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    rows: tuple[dict[str, Any], ...]
    diagnosis: Diagnosis
    now: float

    @cached_property
    def advice(self) -> Advice | None:
        """What can be changed; None where config and plan of the folder make no sound run."""
        return advice_of(self.config, self.plan)

    @property
    def is_on_gpus(self) -> bool:
        """Whether GPUs train, and not processors."""
        return self.plan.get("gpu") != "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One time that an alert is true: the words of its text, and percent of the step that it costs.

    `is_planned`: it is as was planned, and is worth a word only where another setting of the same layout is faster.
    `about` is what it is true of, such as ranks, a host or a step: whatever its figures come to, it is no news where
    it has been told of all of them.
    """

    words: Mapping[str, object] = field(default_factory=dict)
    lost_pct: float = 0.0
    is_planned: bool = False
    about: frozenset[object] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Finding):
    """A finding of a look, and what it is about (Case)."""

    about: frozenset[object] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A kind of change that may help. `told` says it for every run; `edits` are those that this run could try.

    `least_gain_pct`: what it has to gain by plan; None where no plan knows what it is good for. `keeps_layout`: the
    mesh and the batch stay as they are.
    """

    told: str
    edits: Callable[[Look, Advice], Iterable[Edit]]
    least_gain_pct: float | None = LEAST_GAIN_PCT
    keeps_layout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that a run can show.

    `cases` are asked of every look. `message` and `fix` are format strings over the words of a case. The first of
    `ways` that is legal for the run, and worth it, is the fix; where none is, `fix`. `key` is the key that the finding
    stands at where no way names another.
    """

    id: str
    severity: Severity = "warning"
    key: str = ""
    cases: Callable[[Look], Iterable[Case]]
    message: str
    fix: str
    ways: tuple[Way, ...] = ()
    why: str


def raised(alerts: Iterable[Alert], look: Look) -> tuple[Raised, ...]:
    """The findings of a look, worst first: errors, then what costs most of the step, then in the order of the table."""
    found = [
        (case, finding)
        for alert in alerts
        for case in alert.cases(look)
        if (finding := _finding(alert, case, look)) is not None
    ]
    found.sort(key=lambda each: (each[1].severity != "error", -each[0].lost_pct))
    return tuple(finding for _, finding in found)


def _finding(alert: Alert, case: Case, look: Look) -> Raised | None:
    offer = _offer(alert, case, look, look.advice) if alert.ways and look.advice is not None else None
    if offer is None and case.is_planned:
        return None
    return Raised(
        rule=alert.id,
        severity=alert.severity,
        key=next(iter(offer.edit)) if offer is not None else alert.key,
        message=alert.message.format_map(case.words),
        fix=_fix(alert, case, offer),
        about=case.about,
    )


def _offer(alert: Alert, case: Case, look: Look, advice: Advice) -> Offer | None:
    """The first way that is legal and worth it; of what was planned, one that gains more than plans may be off."""
    for way in alert.ways:
        if case.is_planned and not way.keeps_layout:
            continue
        offer = advice.best(way.edits(look, advice), least_gain_pct=way.least_gain_pct)
        if offer is not None and (not case.is_planned or (offer.faster_pct or 0.0) >= _WORTH_CHANGING_PCT):
            return offer
    return None


def _fix(alert: Alert, case: Case, offer: Offer | None) -> str:
    """The offer; where it gives back little of what is lost, what else there is too."""
    fix = alert.fix.format_map(case.words)
    if offer is None:
        return fix
    is_enough = (
        not case.lost_pct or case.is_planned or offer.faster_pct is None or offer.faster_pct >= case.lost_pct / 2
    )
    return offer.words if is_enough else f"{offer.words}; if that is not enough, {fix}"


def line(finding: Finding) -> str:
    """The finding as one line: `W105: not heard of yet: rank 3; fix: ...`."""
    return f"{finding.rule}: {finding.message}" + (f"; fix: {finding.fix}" if finding.fix else "")
