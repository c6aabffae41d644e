"""The steps of a run, one after the other: what is queued, what is looked at, what is written and saved.

Knows the order within a step and that nothing in it waits for the device: a step that is logged is reported while the
device is at the next one, and only where something is saved, validated or profiled behind it is it waited for.
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
from engine.planner.plan import Plan
from engine.profile.window import Profiler
from engine.pulse import Pulse
from engine.recorder import Recorder
from engine.reporting import Reports
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
        self.word = StatusWord(built.device)
        self.pending: Pending | None = None
        self.profiler: Profiler
        self.reports: Reports

    def run(self, source: Source, *, first_step: int = 1) -> Outcome:
        """Steps from `first_step` to the last, or those until the data or somebody's patience ends.

        The last one is always reported, and saved where anything is. Then what went wrong in reading data is raised.
        """
        self.profiler = Profiler(
            self.config,
            self.built,
            first_step=first_step,
            rank=dist.get_rank(),
            run=self.folder,
            warn=lambda text: self.recorder.write("warning", message=text),
        )
        self.reports = Reports(
            *(self.config, self.plan, self.built),
            recorder=self.recorder,
            pulse=self.pulse,
            meters=self.meters,
            profiler=self.profiler,
            settle=self.settle_step,
        )
        with closing(self.profiler):
            try:
                return self.run_steps(source, first_step=first_step)
            except Exception:
                self.reports.write_what_arrived()
                raise

    def run_steps(self, source: Source, *, first_step: int) -> Outcome:
        """The steps of `run`, some of which are profiled."""
        profiler = self.profiler
        steps, log_freq = self.config.training.steps, self.config.metrics.log_freq
        ahead = Ahead(source, last_step=steps)
        status, done = self.meet(ahead, first_step), first_step - 1
        while done < steps and status.has_next and status.stop_exit_code is None:
            step, began_s = done + 1, time.perf_counter()
            batches = ahead.take()
            data_s = self.read_ahead(ahead, step)
            status = self.step(step, batches, ahead, profile=self.asks(step + 2))
            profiler.queued()
            if status.profile:
                profiler.expect(step + 2)
            done = step
            self.reports.meter.add(tokens=status.tokens, slots=self.plan.tokens_per_step, data_s=data_s)
            if step == first_step or step % log_freq == 0:
                self.queue_report(status)
            if step == first_step or profiler.is_over(step) or not self.may_go_on(done, status):
                self.reports.write()
            if profiler.is_over(step):
                self.wait()
                profiler.finish()
            self.go_on(first=step == first_step, step_s=time.perf_counter() - began_s)
            if self.saver is not None:
                # All ranks end together after the next step, as they do where reading fails.
                ahead.failure = ahead.failure or self.saver.look()
                if self.saver.is_due(done):
                    self.save(self.saver, done)
            if self.validation is not None and self.validates(done, status):
                self.validate(self.validation, done)
        if self.pending is not None:
            if self.reports.figures is None:
                self.queue_report(status)
            self.reports.write()
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

    def may_go_on(self, done: int, status: Status) -> bool:
        """Whether the next step may be queued before this one is over, which only a GPU has a use for."""
        saves = self.saver is not None and self.saver.is_due(done)
        validates = self.validation is not None and self.validates(done, status)
        return self.built.device.type == "cuda" and not saves and not validates

    def validates(self, done: int, status: Status) -> bool:
        """Whether the loss of held-out text is due after step `done`."""
        is_last = done == self.config.training.steps or status.ended > 0
        due = self.validation is not None and self.validation.is_due(done, is_last=is_last)
        return due and status.stop_exit_code is None

    def read_ahead(self, ahead: Ahead, step: int) -> float:
        """Reads for the step after `step`, while the device may still be at the one before; gives the seconds."""
        profiler = self.profiler
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

    def asks(self, step: int) -> bool:
        """Whether this rank asks for a profile of `step`; what stands before it would be taken for a wait."""
        saves = self.saver is not None and self.saver.is_due(step - 1)
        validates = self.validation is not None and self.validation.is_due(step - 1)
        return self.profiler.ask(step) and not saves and not validates

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
        built, previous, pulse, phases = self.built, self.pending, self.pulse, self.reports.phases
        tokens = sum(batch.valid_tokens for batch in batches) if built.world.counts_tokens else 0
        pulse.at("gradients")
        phases.begin("gradients")
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
        self.reports.write()
        pulse.at("update")
        phases.mark("update")
        if self.saver is not None:
            self.saver.before_update()
        norm, bad = update_weights(
            built, loss=loss, lr=learning_rate(self.config, step), max_norm=self.config.training.max_norm
        )
        self.pending = Pending(step=step, loss=loss, norm=norm.total, local_norms_N=norm.local_N, bad=bad)
        phases.end()
        return status

    def queue_report(self, status: Status) -> None:
        """The step that is queued will be reported; `status` is its own."""
        pending = self.pending
        assert pending is not None, "no step is queued"
        self.reports.queue(
            step=pending.step, tokens=status.tokens, loss=pending.loss, norm=pending.norm, bad=pending.bad
        )

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
        self.reports.meter.leave_out(time.perf_counter() - began_s)
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

    def settle_step(self, step: int, bad: bool) -> None:
        """The same of a step by its number, unless it is settled."""
        if self.pending is not None and self.pending.step == step:
            self.settle(self.pending, bad)

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
