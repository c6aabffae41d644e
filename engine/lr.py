"""The learning rate of every step: linear warmup, a stable part, a decay.

Knows the curve as a pure function of the config, without torch, so that a plan can be explained
with it. Does not know who applies it (optim.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt

from engine.config import Config

_CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "sqrt": lambda progress: 1.0 - sqrt(progress),
    "cosine": lambda progress: 0.5 * (1.0 + cos(pi * progress)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Steps of each part of a run; they sum to `training.steps`."""

    warmup_steps: int
    stable_steps: int
    decay_steps: int


def asked_decay_steps(config: Config) -> int:
    """Steps of decay as asked for, before they are cut to what warmup leaves."""
    steps, ratio = config.training.steps, config.lr_scheduler.decay_ratio
    return max(0, steps - config.lr_scheduler.warmup_steps) if ratio is None else round(steps * ratio)


def spans(config: Config) -> Spans:
    """How the steps are shared out: warmup first, then decay, each cut to what is left (rules L401 and L402 say so)."""
    steps = config.training.steps
    warmup = min(config.lr_scheduler.warmup_steps, steps)
    decay = min(asked_decay_steps(config), steps - warmup)
    return Spans(warmup_steps=warmup, stable_steps=steps - warmup - decay, decay_steps=decay)


def learning_rate(config: Config, step: int) -> float:
    """The rate of step 1 to `training.steps`.

    Step k of the warmup has k / warmup of the peak. The decay's progress is (k - 1) / decay at
    its k-th step: it begins at the peak and would reach `min_lr_factor` one step after the
    last, so that neither the first nor the last step is thrown away at zero.
    """
    assert 1 <= step <= config.training.steps, f"step {step} is outside 1 to {config.training.steps}"
    part = spans(config)
    peak, floor = config.optimizer.lr, config.lr_scheduler.min_lr_factor
    if step <= part.warmup_steps:
        return peak * step / part.warmup_steps
    decaying = step - part.warmup_steps - part.stable_steps
    if decaying <= 0:
        return peak
    curve = _CURVES[config.lr_scheduler.decay_type]
    return peak * (floor + (1.0 - floor) * curve((decaying - 1) / part.decay_steps))
