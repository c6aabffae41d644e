"""Alerts W212, W216 and W218: a loss or a gradient norm that is out of the ordinary.

Knows the newest reports of this attempt. Does not know whether a model learns well.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from titancli import figures
from titancli.monitor.alerts.advice import Advice, Edit
from titancli.monitor.alerts.alert import Alert, Case, Look, Way
from titancli.monitor.run_state import Report

# What is usual is what the last few reports said, for a loss falls; what is out of it stays on the screen for a while.
_USUAL_REPORTS, _NEW_REPORTS = 10, 5
# Of normal deviates one in half a billion lies six of them off; losses of small batches vary by a few percent.
_DEVIATIONS, _DEVIATION = 6.0, 1.4826
_LEAST_RISE = 0.05
# Norms spread by half of themselves in healthy runs, and fall in the first steps.
_LEAST_JUMP = 4.0


def _not_finite(look: Look) -> Iterator[Case]:
    newest = look.seen.reports[-1] if look.seen.reports else None
    if newest is not None and not newest.is_finite:
        what = "the gradient norm" if newest.loss is not None else "loss and gradient norm"
        yield Case(words={"what": what, "step": f"{newest.step:,}"})


def _jumped(figure: Callable[[Report], float | None], least: float) -> Callable[[Look], Iterator[Case]]:
    """A figure that has risen out of what was usual just before, in one of the newest reports."""

    def cases(look: Look) -> Iterator[Case]:
        told = [(report.step, value) for report in look.seen.reports if (value := figure(report)) is not None]
        found: tuple[float, int, float, float] | None = None
        for place in range(max(_USUAL_REPORTS, len(told) - _NEW_REPORTS), len(told)):
            step, value = told[place]
            before = [each for _, each in told[place - _USUAL_REPORTS : place]]
            usual = statistics.median(before)
            spread = _DEVIATION * statistics.median(abs(each - usual) for each in before)
            rise = value - usual
            if rise > max(_DEVIATIONS * spread, least * abs(usual)) and (found is None or rise > found[0]):
                found = rise, step, value, usual
        if found is not None:
            _, step, value, usual = found
            words = {"step": f"{step:,}", "value": figures.loss(value), "usual": figures.loss(usual)}
            yield Case(words=words, about=frozenset({step}))

    return cases


def _clipped(_: Look, advice: Advice) -> Iterator[Edit]:
    if advice.known.config.training.max_norm == 0:
        yield {"training.max_norm": 1.0}


def _slower_learning(_: Look, advice: Advice) -> Iterator[Edit]:
    """Half the learning rate."""
    yield {"optimizer.lr": advice.known.config.optimizer.lr / 2}


_GENTLER = (
    Way(told="training.max_norm = 1.0, where gradients are not clipped", edits=_clipped, least_gain_pct=None),
    Way(told="half the optimizer.lr", edits=_slower_learning, least_gain_pct=None),
)
_FIX = "go on from a checkpoint before it with a smaller optimizer.lr or more lr_scheduler.warmup_steps"

LEARNING_ALERTS = (
    Alert(
        id="W212",
        severity="error",
        key="optimizer.lr",
        cases=_not_finite,
        message="not finite at step {step}: {what}",
        fix=_FIX,
        ways=_GENTLER,
        why="a weight or a sum has overflowed: what is trained from there on is no model",
    ),
    Alert(
        id="W216",
        key="optimizer.lr",
        cases=_jumped(lambda report: report.loss, _LEAST_RISE),
        message="the loss has risen to {value} at step {step}, from {usual} in the reports before",
        fix=_FIX,
        ways=_GENTLER,
        why="one that falls back by itself does no harm; one that stays up has lost what was learned",
    ),
    Alert(
        id="W218",
        key="training.max_norm",
        cases=_jumped(lambda report: report.grad_norm, _LEAST_JUMP),
        message="the gradient norm has jumped to {value} at step {step}, from {usual} in the reports before",
        fix=_FIX,
        ways=_GENTLER,
        why="gradients many times larger than usual come before a loss that rises: bad data, or steps that are too "
        "large",
    ),
)
