"""The steps of a run, one after the other: what is queued, what is looked at, what is written and saved.

Knows the order within a step and that nothing in it waits for the device: only steps that are logged or saved do.
Does not know the arithmetic (step.py), where batches come from (ahead.py) or how a checkpoint is written (checkpoint/).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.ahead import Ahead, Source
from engine.build import Built
from engine.config import Config
from engine.data.batch import Batch
from engine.errors import EXIT_OK
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
from engine.shapes import part_parameters
from engine.status import Status, StatusWord, find_non_finite
from engine.step import forward_backward, update_weights
from engine.stop import Stop
from engine.validation import Validation


class Saver(Protocol):
    """What keeps checkpoints; every rank asks and calls it at the same steps."""

    def is_due(self, step: int) -> bool:
        """Whether `step` is one after which a checkpoint is saved."""

    def save(self, step: int) -> None:
        """Saves the state after `step`, unless that is saved already; raises on every rank where it fails on one."""

    def before_update(self) -> None:
        """Is called before every update: what is still being copied may not change."""

    def look(self) -> Exception | None:
        """Why a checkpoint that was to be written while training goes on is not; asked after every step."""

    def finish(self) -> None:
        """Waits for what is still being written; raises on every rank where that fails on one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: `reason` in words, the exit code it calls for, and the `step` events in their order."""

    reason: str
    exit_code: int
    last_step: int
    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A step that was queued and not yet looked at; all but `step` lives on the device.

    `loss` is this rank's sum over its own tokens, `bad` is 1.0 where the gradient is not finite.
    """

    step: int
    loss: Tensor
    norm: Tensor
    local_norms_N: Tensor
    bad: Tensor


class Training:
    """The state of a run between steps: counts, the step that is queued, the word ranks exchange."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        built: Built,
        *,
        recorder: Recorder,
        stop: Stop,
        pulse: Pulse,
        meters: RankMeters,
        saver: Saver | None = None,
        validation: Validation | None = None,
        folder: Path | None = None,
    ) -> None:
        self.config, self.plan, self.built, self.recorder, self.stop = config, plan, built, recorder, stop
        self.pulse, self.meters, self.saver, self.folder = pulse, meters, saver, folder
        self.validation = validation
        self.phases = Phases(built.device)
        self.word = StatusWord(built.device)
        self.pending: Pending | None = None
        self.meter = Meter(config, plan, now_s=time.perf_counter())

    def run(self, source: Source, *, first_step: int = 1) -> Outcome:
        """Steps from `first_step` to the last, or those until the data or somebody's patience ends.

        The last one is always reported, and saved where anything is. Then what went wrong in reading data is raised.
        """
        profiler = Profiler(
            self.config,
            self.built,
            first_step=first_step,
            rank=dist.get_rank(),
            run=self.folder,
            warn=lambda text: self.recorder.write("warning", message=text),
        )
        with closing(profiler):
            return self.run_steps(source, profiler, first_step=first_step)

    def run_steps(self, source: Source, profiler: Profiler, *, first_step: int) -> Outcome:
        """The steps of `run`, some of which are profiled."""
        steps, log_freq = self.config.training.steps, self.config.metrics.log_freq
        ahead = Ahead(source, last_step=steps)
        status, done = self.meet(ahead, first_step), first_step - 1
        while done < steps and status.has_next and status.stop_exit_code is None:
            step, began_s = done + 1, time.perf_counter()
            batches = ahead.take()
            data_s = self.read_ahead(ahead, profiler, step)
            status = self.step(step, batches, ahead, profile=self.asks(profiler, step + 2))
            profiler.queued()
            if status.profile:
                profiler.expect(step + 2)
            done = step
            self.meter.add(tokens=status.tokens, slots=self.plan.tokens_per_step, data_s=data_s)
            if step == first_step or step % log_freq == 0:
                self.report(status.tokens, profiler)
            elif profiler.is_over(step):
                self.wait()
                profiler.finish()
            self.go_on(first=step == first_step, step_s=time.perf_counter() - began_s)
            if self.saver is not None:
                # All ranks end together after the next step, as they do where reading fails.
                ahead.failure = ahead.failure or self.saver.look()
                if self.saver.is_due(done):
                    self.save(self.saver, done)
            if self.validation is not None and status.stop_exit_code is None:
                is_last = done == steps or status.ended > 0
                if self.validation.is_due(done, is_last=is_last):
                    self.validate(self.validation, done)
        if self.pending is not None:
            self.report(status.tokens, profiler)
        if self.saver is not None and done >= first_step:
            self.save(self.saver, done, last=True)
        self.pulse.at("end", done + 1)
        reason, code = self.ending(ahead, status, done)
        return Outcome(reason=reason, exit_code=code, last_step=done, steps=tuple(self.recorder.steps))

    def meet(self, ahead: Ahead, first_step: int) -> Status:
        """Reads for the first step, and waits until all ranks have: the one wait that later steps go without."""
        self.pulse.at("data", first_step)
        ahead.read(first_step)
        self.pulse.at("word", first_step)
        self.word.send(tokens=0, stop=self.stop, previous_bad=None, ahead=ahead)
        return self.word.read()

    def read_ahead(self, ahead: Ahead, profiler: Profiler, step: int) -> float:
        """Reads for the step after `step`, while the device may still be at the one before; gives the seconds."""
        profiler.before(step)
        self.pulse.at("data", step)
        began_ns = time.time_ns()
        began_s = time.perf_counter()
        ahead.read(step + 1)
        data_s = time.perf_counter() - began_s
        profiler.read(began_ns, time.time_ns())
        return data_s

    def wait(self) -> None:
        """Waits until the device is done with all that is queued."""
        self.pulse.at("report")
        if self.built.device.type == "cuda":
            torch.cuda.synchronize(self.built.device)

    def asks(self, profiler: Profiler, step: int) -> bool:
        """Whether this rank asks for a profile of `step`; what stands before it would be taken for a wait."""
        saves = self.saver is not None and self.saver.is_due(step - 1)
        validates = self.validation is not None and self.validation.is_due(step - 1)
        return profiler.ask(step) and not saves and not validates

    def ending(self, ahead: Ahead, status: Status, done: int) -> tuple[str, int]:
        """Why the run ends after step `done`, and its exit code; raises what failed in reading data on any rank."""
        if not status.has_next:
            reason = ahead.end_together(done)
            if status.stop_exit_code is None:
                return reason, EXIT_OK
        if status.stop_exit_code is not None:
            return f"stopped by a signal after step {done}", status.stop_exit_code
        return "completed", EXIT_OK

    def step(self, step: int, batches: Sequence[Batch], ahead: Ahead, *, profile: bool) -> Status:
        """One optimizer step, queued; what all ranks say of it and of the one after it.

        A bad step before this one is found here, in time to keep this one from changing weights.
        """
        built, previous, pulse = self.built, self.pending, self.pulse
        tokens = sum(batch.valid_tokens for batch in batches) if built.world.counts_tokens else 0
        pulse.at("gradients")
        self.phases.begin("gradients")
        denominator = self.word.send(
            tokens=tokens,
            stop=self.stop,
            previous_bad=previous.bad if previous else None,
            ahead=ahead,
            profile=profile,
        )
        loss = forward_backward(built, batches, denominator)
        pulse.at("word")
        status = self.word.read()
        if previous is not None:
            self.settle(previous, status.previous_bad)
        pulse.at("update")
        self.phases.mark("update")
        if self.saver is not None:
            self.saver.before_update()
        norm, bad = update_weights(
            built, loss=loss, lr=learning_rate(self.config, step), max_norm=self.config.training.max_norm
        )
        self.pending = Pending(step=step, loss=loss, norm=norm.total, local_norms_N=norm.local_N, bad=bad)
        self.phases.end()
        return status

    def go_on(self, *, first: bool, step_s: float) -> None:
        """After a step: the next one may take the time of this one, and what the config allows for waiting."""
        allowed_s = self.config.comm.train_timeout_seconds
        self.pulse.allow(allowed_s + step_s, f"comm.train_timeout_seconds = {allowed_s}")
        if first:
            # It compiles and warms up: no later one should take as long.
            self.built.world.set_timeout(allowed_s + step_s)
            if self.config.compile.enable:
                self.recorder.begin("train")

    def save(self, saver: Saver, step: int, *, last: bool = False) -> None:
        """Saves what is there after `step`, once it is known to be finite; the `last` one is waited for."""
        self.settle_if_bad()
        allowed_s = self.config.comm.save_timeout_seconds
        with self.pulse.within("save", allowed_s, f"comm.save_timeout_seconds = {allowed_s}"):
            saver.save(step)
            if last:
                saver.finish()

    def validate(self, validation: Validation, step: int) -> None:
        """Writes down the loss over held-out text with the weights after `step`; its time is not that of steps."""
        self.wait()
        self.settle_if_bad()
        began_s = time.perf_counter()
        self.recorder.begin("validate")
        found = validation.run(step)
        self.recorder.begin("train")
        self.meter.leave_out(time.perf_counter() - began_s)
        if found is None or dist.get_rank() != 0:
            return
        loss = found.loss if math.isfinite(found.loss) else None
        if loss is None:
            self.recorder.write("warning", message=f"the validation loss after step {step} is {found.loss}")
        self.recorder.write(
            "validation", step=step, loss=loss, tokens=found.tokens, batches=found.batches, seconds=found.seconds
        )

    def settle_if_bad(self) -> None:
        """Waits for the step that is queued, if any is, and raises NonFiniteStep if it is bad."""
        if self.pending is not None and bool(self.pending.bad):
            self.settle(self.pending, True)

    def settle(self, pending: Pending, bad: bool) -> None:
        """Looks at a step that is over; raises NonFiniteStep if it was bad."""
        self.pending = None
        if bad:
            shape = self.plan.model
            raise find_non_finite(
                step=pending.step,
                loss=pending.loss,
                names=tuple(self.built.weights),
                local_norms_N=pending.local_norms_N,
                model=tuple(part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)),
            )

    def report(self, tokens: int, profiler: Profiler) -> None:
        """Waits for the queued step, then writes its figures; loss and norm are those of the whole world."""
        pending = self.pending
        self.pulse.at("report")
        assert pending is not None, "no step is queued"
        total = pending.loss.clone() if self.built.counts_loss else torch.zeros_like(pending.loss)
        dist.all_reduce(total)
        loss_sum, grad_norm, bad = torch.stack((total, pending.norm.double(), pending.bad.double())).tolist()
        self.settle(pending, bool(bad))
        self.meters.report()
        speed = self.meter.report(time.perf_counter())
        if profiler.is_over(pending.step):
            profiler.finish()
        self.recorder.write("memory", **memory_fields(self.built.device), cpu_pct=self.meters.processor.pct())
        self.recorder.write(
            "step",
            step=pending.step,
            loss=loss_sum / tokens if tokens else None,
            grad_norm=grad_norm,
            lr=learning_rate(self.config, pending.step),
            tokens=tokens,
            slots=self.plan.tokens_per_step,
            step_s=speed.step_s,
            tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
            mfu_pct=speed.mfu_pct,
            breakdown=self.broken_down(speed, profiler.take()),
            phases=self.phases.seconds(),
        )

    def broken_down(self, speed: Speed, profiled: Breakdown | None) -> dict[str, Any]:
        """`breakdown` of a step: in the shares of the one that was profiled, else what the host waited for data."""
        if profiled is not None:
            return profiled.of(speed.step_s)
        unknown = dict.fromkeys(("compute_s", "exposed_comm_s", "bubble_s", "host_s", "profiled_s"))
        return {"data_s": speed.data_s, **unknown, "other_s": max(0.0, speed.step_s - speed.data_s)}
