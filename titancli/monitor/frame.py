"""One look at a run: the object of `titan monitor --json`, which the panels draw too.

Knows how state, plan, config and meters go together. Does not read events, processes or meters. What is unknown
is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from titancli.monitor.alerts import alerts_of
from titancli.monitor.alerts.alert import Look, Raised, line
from titancli.monitor.diagnosis import Diagnosis, diagnose
from titancli.monitor.follow import ENDED, State
from titancli.monitor.rows import rows_of
from titancli.monitor.run_state import Failure, RunState

_NOTHING: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is shown at one moment; `to_json` is the contract's object.

    `time_s` holds seconds of a step by part, measured (means over the ranks that took a profile in this attempt) and
    planned (on the busiest pipeline rank). `alerts` are `findings` as lines, worst first; `news` is what each of these
    lines tells, which stays the same where figures in its text change.
    """

    time: float
    run: str
    state: State
    steps: int | None
    seen: RunState
    ranks: tuple[dict[str, Any], ...]
    eta_s: float | None
    alerts: tuple[str, ...]
    time_s: Mapping[str, Any] = field(default_factory=lambda: {"measured": None, "planned": None})
    slowest: Mapping[str, Any] | None = None
    findings: tuple[dict[str, Any], ...] = ()
    news: Mapping[str, frozenset[object]] = field(default_factory=dict)

    @property
    def saved_s_ago(self) -> float | None:
        """Seconds since the newest checkpoint was committed; None where none was, or another run left it."""
        saved = self.seen.saved_time
        return None if saved is None else max(0.0, self.time - saved)

    def to_json(self) -> dict[str, Any]:
        """The object of `titan monitor --json`; unknown figures are null."""
        seen = self.seen
        return {
            "time": self.time,
            "run": self.run,
            "state": self.state,
            "step": seen.step,
            "steps": self.steps,
            "loss": seen.loss,
            "grad_norm": seen.grad_norm,
            "tokens_per_s_per_gpu": seen.tokens_per_s_per_gpu,
            "mfu_pct": seen.mfu_pct,
            "eta_s": self.eta_s,
            "ranks": list(self.ranks),
            "alerts": list(self.alerts),
            "starts": seen.starts,
            "saved_step": seen.saved_step,
            "saved_s_ago": self.saved_s_ago,
            "validation_step": seen.validation_step,
            "validation_loss": seen.validation_loss,
            "lr": seen.lr,
            "time_s": dict(self.time_s),
            "slowest": None if self.slowest is None else dict(self.slowest),
            "findings": list(self.findings),
        }


def frame(
    name: str,
    seen: RunState,
    state: State,
    *,
    failure: Failure | None,
    config: Mapping[str, Any],
    plan: Mapping[str, Any],
    now: float,
    live: Mapping[int, Mapping[str, Any]] = _NOTHING,
) -> Frame:
    """Puts a frame together.

    `failure` is the cause of a failed run. `config` and `plan` are the run folder's files as
    plain objects, empty where they are missing. `live` is what was read here and now of ranks on this machine
    (live), and goes before what they wrote.
    """
    training = config.get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    diagnosis = diagnose(seen, plan)
    rows = rows_of(seen, plan, diagnosis, live)
    look = Look(
        run=name,
        seen=seen,
        state=state,
        failure=failure,
        config=config,
        plan=plan,
        rows=rows,
        diagnosis=diagnosis,
        now=now,
    )
    findings = alerts_of(look)
    return Frame(
        time=now,
        run=name,
        state=state,
        steps=steps if isinstance(steps, int) else None,
        seen=seen,
        ranks=rows,
        eta_s=None if state in ENDED else eta_s(seen, steps if isinstance(steps, int) else None),
        alerts=tuple(line(finding) for finding in findings),
        time_s={"measured": diagnosis.measured, "planned": diagnosis.planned},
        slowest=_slowest(diagnosis),
        findings=tuple({name: getattr(each, name) for name in _OF_A_FINDING} for each in findings),
        news={line(each): _news(each, seen) for each in findings},
    )


def _news(raised: Raised, seen: RunState) -> frozenset[object]:
    """An alert that is true of two ranks is news where it was of one; an attempt begins anew."""
    return frozenset((seen.starts, raised.rule, each) for each in raised.about or {None})


_OF_A_FINDING = ("rule", "severity", "key", "message", "fix")


def eta_s(seen: RunState, steps: int | None) -> float | None:
    """Seconds left at the median pace of the last steps; None before a second step was seen."""
    if steps is None or seen.step is None or not seen.step_seconds:
        return None
    return max(0, steps - seen.step) * statistics.median(seen.step_seconds)


def _slowest(diagnosis: Diagnosis) -> dict[str, Any] | None:
    slow = diagnosis.slowest
    return None if slow is None else {"rank": slow.rank, "behind_pct": slow.behind_pct, "of": slow.of}
