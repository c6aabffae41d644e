"""Runs as a launch leaves them, written by the test: config, plan and the events of every rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.events import EventLog

MakeRun = Callable[..., Path]
GIB = 1 << 30


def write_run(
    folder: Path,
    losses: Sequence[float | None],
    *,
    log_freq: int = 1,
    step_s: float = 2.0,
    tokens: int = 1024,
    world_size: int = 2,
    gpu: str = "cpu",
    config: str = "",
    ended: dict[str, Any] | None = None,
    idle: dict[str, Any] | None = None,
    resumed_from: int | None = None,
    steps: int | None = None,
    validation: float | None = None,
) -> Path:
    """A run whose first logged step is that after `resumed_from`; into a folder that is there, another attempt goes.

    `ended` is None for a run that has come to its end; empty for one that is cut off. `losses` are those of every step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = steps if steps is not None else (resumed_from or 0) + len(losses)
    text = f"[training]\nsteps = {total}\n[metrics]\nlog_freq = {log_freq}\n{config}"
    (folder / "config.toml").write_text(text, "utf-8")
    memory = {"peak_bytes": 4 * GIB, "reserved_bytes": 5 * GIB, "capacity_bytes": 80 * GIB}
    plan = {"gpu": gpu, "world_size": world_size, "tokens_per_step": tokens, "stages": [{"memory": memory}]}
    (folder / "plan.json").write_text(json.dumps(plan), "utf-8")
    on_gpu = {"reserved_bytes": 5 * GIB, "peak_reserved_bytes": 6 * GIB}
    taken = {"host_rss_bytes": GIB} if gpu == "cpu" else on_gpu
    for rank in range(world_size):
        log = EventLog(folder, rank)
        log.write(
            "run_started",
            world_size=world_size,
            gpu=None,
            versions={"torch": "2.13.0"},
            plan=plan if rank == 0 else None,
            resumed_from=resumed_from,
        )
        first = (resumed_from or 0) + 1
        for step, loss in enumerate(losses, start=first):
            if step == first or step % log_freq == 0 or step == first + len(losses) - 1:
                rate = None if step == first else tokens / step_s / world_size
                _step(log, step, loss, rate=rate, step_s=step_s, tokens=tokens, idle=idle)
        log.write("memory", **taken)
        if validation is not None and rank == 0:
            log.write("validation", step=total, loss=validation, tokens=64, batches=1, seconds=0.1)
        if ended is None:
            log.write("run_ended", reason="completed", exit_code=0, first_failure=None)
        elif ended:
            log.write("run_ended", **ended)
        log.close()
    return folder


def _step(
    log: EventLog,
    step: int,
    loss: float | None,
    *,
    rate: float | None,
    step_s: float,
    tokens: int,
    idle: dict[str, Any] | None,
) -> None:
    log.write(
        "step",
        step=step,
        loss=loss,
        tokens=tokens,
        slots=tokens,
        step_s=step_s,
        tokens_per_s_per_gpu=rate,
        mfu_pct=None if rate is None else rate / 10,
        breakdown=idle,
    )


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run("name", losses, ...)` writes `<tmp_path>/runs/name` and returns it."""
    return lambda name, losses, **how: write_run(tmp_path / "runs" / name, losses, **how)
