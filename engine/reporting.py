"""What is said of the steps that are logged: their figures, speed, memory, breakdown.

Knows when the figures of a step are queued and when they are read: a GPU is at the next step by then. Does not know
which steps are logged, nor what a bad one means (training.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from engine.build import Built
from engine.config import Config
from engine.figures import Figures
from engine.lr import learning_rate
from engine.meters.rank import RankMeters
from engine.metrics import Meter, Speed
from engine.planner.plan import Plan
from engine.profile.breakdown import Breakdown
from engine.profile.phases import Phases
from engine.profile.window import Profiler
from engine.pulse import Pulse
from engine.recorder import Recorder
from engine.report import memory_fields


class Reports:
    """Reports on steps, at most one of which is under way; `settle` is told of a step and whether it was bad."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        built: Built,
        *,
        recorder: Recorder,
        pulse: Pulse,
        meters: RankMeters,
        profiler: Profiler,
        settle: Callable[[int, bool], None],
    ) -> None:
        self.config, self.plan, self.built, self.recorder, self.pulse = config, plan, built, recorder, pulse
        self.meters, self.profiler, self.settle = meters, profiler, settle
        self.phases = Phases(built.device)
        self.meter = Meter(config, plan, now_s=time.perf_counter())
        self.figures: Figures | None = None

    def queue(self, *, step: int, tokens: int, loss: Tensor, norm: Tensor, bad: Tensor) -> None:
        """The step that was just queued will be reported; every rank calls it at once."""
        self.phases.keep()
        counts = self.built.counts_loss
        self.figures = Figures(step=step, tokens=tokens, loss=loss, norm=norm, bad=bad, counts_loss=counts)

    def write_what_arrived(self) -> None:
        """Reports what can be without waiting: something went wrong, and the device may never get any further.

        Not a bad step: it is what went wrong, or nobody looks for where it began, which takes all ranks. A GPU that is
        lost, or a disk that is full, keeps the report back, and never the failure that there is to tell.
        """
        with suppress(RuntimeError, OSError):
            if self.figures is not None and self.figures.have_arrived() and not self.figures.read()[2]:
                self.write()

    def write(self) -> None:
        """Waits for the figures that are queued, if any are, and writes them; they are those of the whole world."""
        figures, self.figures = self.figures, None
        if figures is None:
            return
        if not figures.have_arrived():
            self.pulse.at("report")
        loss_sum, grad_norm, bad = figures.read()
        self.settle(figures.step, bad)
        self.meters.report()
        speed = self.meter.report(self.phases.ended_s())
        if self.profiler.is_over(figures.step):
            self.profiler.finish()
        self.recorder.write("memory", **memory_fields(self.built.device), cpu_pct=self.meters.processor.pct())
        self.recorder.write(
            "step",
            step=figures.step,
            loss=loss_sum / figures.tokens if figures.tokens else None,
            grad_norm=grad_norm,
            lr=learning_rate(self.config, figures.step),
            tokens=figures.tokens,
            slots=self.plan.tokens_per_step,
            step_s=speed.step_s,
            tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
            mfu_pct=speed.mfu_pct,
            breakdown=self.broken_down(speed, self.profiler.take()),
            phases=self.phases.seconds(),
        )

    def broken_down(self, speed: Speed, profiled: Breakdown | None) -> dict[str, Any]:
        """`breakdown` of a step: in the shares of the one that was profiled, else what the host waited for data."""
        if profiled is not None:
            return profiled.of(speed.step_s)
        unknown = dict.fromkeys(("compute_s", "exposed_comm_s", "bubble_s", "host_s", "profiled_s"))
        return {"data_s": speed.data_s, **unknown, "other_s": max(0.0, speed.step_s - speed.data_s)}
