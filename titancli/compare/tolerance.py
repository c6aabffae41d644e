"""A comparison as a test: whether every loss stays within a band around that of the reference.

Knows which losses belong together, and what counts as a failure beside a loss that is too far off: one that is not
there, and a run that has not come to its end. Does not know where findings are shown.
"""

from __future__ import annotations

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import Finding, TitanError
from titancli import figures, report
from titancli.compare.beside import Beside, Row
from titancli.compare.curve import loss_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two losses that belong together, at a step of the reference; None where one was not written."""

    step: int
    tokens: float | None
    reference: float | None
    loss: float | None

    def difference(self) -> float | None:
        """How far the loss is off, of the reference; None where either is not known."""
        if self.reference is None or self.loss is None:
            return None
        off = self.loss - self.reference
        return off / abs(self.reference) if self.reference else math.copysign(math.inf, off) if off else 0.0

    def is_within(self, band: float) -> bool:
        """Whether both are known and no further from each other than the band."""
        difference = self.difference()
        return difference is not None and abs(difference) <= band


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run against the reference: the pairs that were compared, those that failed, and what is told of it."""

    row: Row
    by: Literal["steps", "tokens"]
    pairs: tuple[Pair, ...]
    failed: tuple[Pair, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What has come of it; `ok` only where every run was compared and is within the band."""

    band: float
    runs: tuple[Judged, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether it is passed."""
        return not self.findings

    def line(self) -> str:
        """One line on a verdict that is good."""
        count = sum(len(each.pairs) for each in self.runs)
        most = max(abs(pair.difference() or 0.0) for each in self.runs for pair in each.pairs)
        by = " and ".join(sorted({f"common {each.by}" for each in self.runs}))
        last = min(each.pairs[-1].step for each in self.runs)
        runs = "all runs are" if len(self.runs) > 1 else "the run is"
        return (
            f"within {_percent(self.band)}: {runs} at most {_percent(most)} from the reference, in "
            f"{figures.many(count, 'loss').replace('losss', 'losses')} at {by}, up to step {last:,} of it"
        )

    def to_json(self) -> dict[str, Any]:
        """`tolerance` of `titan compare --json`."""
        return {
            "band": self.band,
            "ok": self.ok,
            "runs": [
                {
                    "name": each.row.name,
                    "by": each.by,
                    "compared": len(each.pairs),
                    "failed": [_object(pair) for pair in each.failed],
                }
                for each in self.runs
            ],
            "findings": [finding.to_json() for finding in self.findings],
        }


def band_of(text: str) -> float:
    """`--tolerance` as a number; TitanError U173 for what is none, or is no band."""
    try:
        band = float(text)
    except ValueError:
        band = math.nan
    if not 0 <= band < math.inf:
        message = f"--tolerance {text or 'nothing'}: that is no band around a loss"
        raise TitanError(report.error("U173", message, "give a share of it, such as 0.01 for 1 %"))
    return band


def judge(compared: Beside, band: float) -> Verdict:
    """Holds every run against the reference."""
    reference, *others = compared.rows
    ends = tuple(_end(reference))
    runs = tuple(_judged(row, reference, band) for row in others)
    return Verdict(band=band, runs=runs, findings=(*ends, *(finding for each in runs for finding in each.findings)))


def _judged(row: Row, reference: Row, band: float) -> Judged:
    by: Literal["steps", "tokens"] = "steps" if _has_same_batch(row, reference) else "tokens"
    pairs = tuple(_by_step(row, reference) if by == "steps" else _by_tokens(row, reference))
    failed = tuple(pair for pair in pairs if not pair.is_within(band))
    findings = [*_end(row)]
    if not any(pair.difference() is not None for pair in pairs):
        message = f"nothing of {row.name} was compared with {reference.name}: no loss of both at common {by}"
        fix = "compare runs that have logged losses of the same steps"
        findings.append(report.error("R403", message, fix))
    elif failed:
        findings.append(_off(row, reference, failed, len(pairs), band))
    return Judged(row=row, by=by, pairs=pairs, failed=failed, findings=tuple(findings))


def _has_same_batch(row: Row, reference: Row) -> bool:
    """Whether a step of both runs takes as many tokens, as far as is known."""
    slots = [dict(zip(each.curve.steps, each.curve.slots or (), strict=False)) for each in (row, reference)]
    common = slots[0].keys() & slots[1].keys()
    return all(math.isclose(slots[0][step], slots[1][step], rel_tol=1e-6) for step in common) and bool(
        common or _tokens_a_step(row) == _tokens_a_step(reference)
    )


def _tokens_a_step(row: Row) -> object:
    return row.run.plan.get("tokens_per_step")


def _by_step(row: Row, reference: Row) -> Iterator[Pair]:
    """Losses at steps that both have logged, and at those that one of them should have as the other has."""
    first = dict(zip(reference.curve.steps, reference.curve.losses, strict=True))
    second = dict(zip(row.curve.steps, row.curve.losses, strict=True))
    last = min(max(first, default=0), max(second, default=0))
    steps = first.keys() & second.keys()
    every = _log_freq(reference.run.config)
    if every == _log_freq(row.run.config) and isinstance(every, int) and every > 0:
        # The last step of a run is logged too, whatever its number.
        steps |= {step for step in first.keys() | second.keys() if step <= last and step % every == 0}
    places = dict(zip(reference.curve.steps, reference.curve.tokens or (), strict=False))
    for step in sorted(steps):
        yield Pair(step=step, tokens=places.get(step), reference=first.get(step), loss=second.get(step))


def _log_freq(config: Mapping[str, Any]) -> object:
    metrics = config.get("metrics")
    return metrics.get("log_freq") if isinstance(metrics, dict) else None


def _by_tokens(row: Row, reference: Row) -> Iterator[Pair]:
    """The reference's losses, and those of the run at as many tokens: on the line between two logged steps."""
    points, places, own = row.curve.points("tokens"), row.curve.tokens or (), reference.curve
    for step, tokens, loss in zip(own.steps, own.tokens or (), own.losses, strict=False):
        if places and places[0] <= tokens <= places[-1]:
            found = loss_at(points, tokens) if _is_known(row, tokens) else None
            yield Pair(step=step, tokens=tokens, reference=loss, loss=found)


def _is_known(row: Row, tokens: float) -> bool:
    """Whether a run has a loss at each logged step around a place: a line drawn over a gap would hide it."""
    places, losses = row.curve.tokens or (), row.curve.losses
    index = bisect_left(places, tokens)
    around = losses[index : index + 1] if places[index] == tokens else losses[index - 1 : index + 1]
    return None not in around


def _end(row: Row) -> Iterator[Finding]:
    """A run that has not come to its end has losses that nobody can compare."""
    run = row.run
    if run.state == "finished":
        return
    came = "has come to no step" if run.step is None else f"has come to step {run.step:,}"
    of = f" of {run.steps:,}" if run.steps is not None and run.step is not None else ""
    why = f": {run.failure}" if run.failure else ""
    fix = "let it come to its end" if not run.is_over else "go on with it, or compare another run"
    yield report.error("R402", f"{row.name} is {run.state} and {came}{of}{why}", fix)


def _off(row: Row, reference: Row, failed: tuple[Pair, ...], count: int, band: float) -> Finding:
    first = failed[0]
    place = f"step {first.step:,}"
    if not _has_same_batch(row, reference):
        place = f"{round(first.tokens or 0):,} tokens (step {first.step:,} of {reference.name})"
    losses = f"{_loss(row, first.loss)} against {_loss(reference, first.reference)}"
    difference = first.difference()
    off = "" if difference is None else f", {_percent(difference, sign=True)}"
    told = [pair for pair in failed if pair.difference() is not None]
    worst = max(told, key=lambda pair: abs(pair.difference() or 0.0), default=None)
    more = f"; {len(failed)} of {count} are not within {_percent(band)}"
    if worst is not None and worst is not first:
        more += f", at worst {_percent(worst.difference() or 0.0, sign=True)} at step {worst.step:,}"
    message = f"the loss of {row.name} leaves the band at {place}: {losses}{off}{more}"
    both = shlex.join((str(reference.run.folder), str(row.run.folder)))
    return report.error("R401", message, f"see what differs: titan compare {both}")


def _loss(row: Row, loss: float | None) -> str:
    return f"{row.name} {'has none' if loss is None else f'{loss:.6g}'}"


def _percent(share: float, *, sign: bool = False) -> str:
    return f"{100 * share:+.3g} %" if sign else f"{100 * share:.3g} %"


def _object(pair: Pair) -> dict[str, Any]:
    return {
        "step": pair.step,
        "tokens": None if pair.tokens is None else round(pair.tokens),
        "reference": pair.reference,
        "loss": pair.loss,
        "difference": pair.difference() if math.isfinite(pair.difference() or 0.0) else None,
    }
