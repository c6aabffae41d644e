"""Events as a rank writes them, and a way to hand them to a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.events import Event

BREAKDOWN = {
    "data_s": 0.01,
    "compute_s": None,
    "exposed_comm_s": None,
    "bubble_s": None,
    "host_s": None,
    "other_s": 0.5,
    "profiled_s": None,
}


@pytest.fixture
def told() -> Callable[..., Event]:
    """One event."""

    def event(kind: str, **fields: Any) -> Event:
        return {"time": 1_800_000_000.5, "kind": kind, **fields}

    return event


@pytest.fixture
def started(told: Callable[..., Event]) -> Callable[..., Event]:
    """The beginning of a run, on a GPU."""

    def event(resumed_from: int | None = None, gpu: Any = None) -> Event:
        return told("run_started", world_size=2, host="node-1", gpu=gpu, resumed_from=resumed_from)

    return event


@pytest.fixture
def stepped(told: Callable[..., Event]) -> Callable[..., Event]:
    """A step with a loss, without a profile."""

    def event(step: int, loss: float, **more: Any) -> Event:
        fields = {"step": step, "loss": loss, "grad_norm": 1.5, "lr": 0.25, "tokens": 64, "step_s": 0.51}
        return told("step", **fields | {"tokens_per_s_per_gpu": 128.0, "mfu_pct": None, "breakdown": BREAKDOWN} | more)

    return event
