"""A run: its steps, what is written about them, and how it ends.

Knows the order within a step and that nothing in it waits for the device: only steps that are
logged do. Does not know how the model is built (build.py) or where batches come from (data/).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.build import Built, build
from engine.config import Config
from engine.data.loader import Batch, Loader
from engine.errors import EXIT_OK
from engine.events import EventLog
from engine.lr import learning_rate
from engine.metrics import Meter
from engine.optim import GradientNorm, clip_divisor, gradient_norm, update
from engine.parallel.mesh import local_device, process_group
from engine.parallel.quantize import after_update
from engine.parallel.shard import set_last_accumulation
from engine.planner.plan import Plan
from engine.recorder import Recorder, failure_fields
from engine.report import gpu_of, memory_fields, versions
from engine.shapes import part_parameters
from engine.status import StatusWord, find_non_finite
from engine.stop import Stop, listening


class Source(Protocol):
    """Where a rank's batches come from."""

    def batches(self, step: int) -> Sequence[Batch] | None:
        """The batches of one step, one for each accumulation step; None, on all ranks at once, where data ended."""

    @property
    def end_message(self) -> str:
        """Why there are no more, for people; asked only after `batches` said so."""


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


def fit(config: Config, plan: Plan, *, run: Path | None = None, source: Source | None = None) -> Outcome:
    """Trains, in this process and, where the plan has more, together with the others that torchrun started.

    `run` is the folder that events go to; without it they are only returned. `source` replaces
    the corpus of the config. Raises what went wrong, after writing `run_ended`; an out-of-memory too,
    whatever `training.on_out_of_memory` says: only who started all processes can start them again, as
    `titan launch` does (engine/shrink gives the next smaller batch).
    """
    device = local_device("cpu" if plan.gpu == "cpu" else "cuda")
    rank = int(os.environ.get("RANK", "0")) if not dist.is_initialized() else dist.get_rank()
    log = EventLog(run, rank) if run is not None else None
    recorder = Recorder(log)
    try:
        with (
            listening() as stop,
            determinism(config),
            process_group(device, world_size=plan.world_size, timeout_s=config.comm.init_timeout_seconds),
        ):
            outcome = _run(config, plan, device=device, recorder=recorder, stop=stop, source=source)
    except BaseException as failure:
        recorder.write("run_ended", **failure_fields(failure, rank))
        raise
    else:
        recorder.write("run_ended", reason=outcome.reason, exit_code=outcome.exit_code, first_failure=None)
        return outcome
    finally:
        if log is not None:
            log.close()


@contextmanager
def determinism(config: Config) -> Iterator[None]:
    """Seeds torch and, where asked, allows deterministic kernels only; puts the latter back."""
    torch.manual_seed(config.debug.seed)
    before = torch.are_deterministic_algorithms_enabled()
    if config.debug.deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _run(
    config: Config, plan: Plan, *, device: torch.device, recorder: Recorder, stop: Stop, source: Source | None
) -> Outcome:
    recorder.begin("build")
    built = build(config, plan, device)
    source = source or Loader(config, plan, data_rank=built.world.data_rank)
    recorder.write(
        "run_started",
        world_size=plan.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        local_parameters=built.local_parameters,
        gpu=gpu_of(device),
        versions=versions(device),
        plan=plan.to_json() if dist.get_rank() == 0 else None,
        data=asdict(source.summary) if isinstance(source, Loader) else None,
        resumed_from=None,
    )
    if isinstance(source, Loader) and (source.summary.bad_lines or source.summary.bad_files):
        recorder.write("warning", message=source.summary.text)
    # The first step compiles.
    recorder.begin("compile" if config.compile.enable else "train")
    outcome = Training(config, plan, built, recorder, stop).run(source)
    recorder.end()
    return outcome


class Training:
    """The state of a run between steps: counts, the step that is queued, the word ranks exchange."""

    def __init__(self, config: Config, plan: Plan, built: Built, recorder: Recorder, stop: Stop) -> None:
        self.config, self.plan, self.built, self.recorder, self.stop = config, plan, built, recorder, stop
        self.word = StatusWord(built.device)
        self.pending: Pending | None = None
        self.meter = Meter(config, plan, now_s=time.perf_counter())

    def run(self, source: Source) -> Outcome:
        """All steps, or those until the data or somebody's patience ends; the last one is always reported."""
        steps, log_freq = self.config.training.steps, self.config.metrics.log_freq
        reason, code, done, tokens = "completed", EXIT_OK, 0, 0
        for step in range(1, steps + 1):
            began_s = time.perf_counter()
            batches = source.batches(step)
            data_s = time.perf_counter() - began_s
            if batches is None:
                reason = source.end_message
                break
            tokens, stop_code = self.step(step, batches)
            done = step
            self.meter.add(tokens=tokens, slots=self.plan.tokens_per_step, data_s=data_s)
            if step == 1 or step % log_freq == 0:
                self.report(tokens)
            if step == 1:
                self.built.world.set_timeout(self.config.comm.train_timeout_seconds)
                if self.config.compile.enable:
                    self.recorder.begin("train")
            if stop_code is not None:
                reason, code = f"stopped by a signal after step {done}", stop_code
                break
        if self.pending is not None:
            self.report(tokens)
        return Outcome(reason=reason, exit_code=code, last_step=done, steps=tuple(self.recorder.steps))

    def step(self, step: int, batches: Sequence[Batch]) -> tuple[int, int | None]:
        """One optimizer step, queued; valid tokens of all ranks in it, and the exit code if all are to stop after it.

        A bad step before this one is found here, in time to keep this one from changing weights.
        """
        built, previous = self.built, self.pending
        tokens = sum(batch.valid_tokens for batch in batches) if built.world.counts_tokens else 0
        denominator = self.word.send(tokens=tokens, stop=self.stop, previous_bad=previous.bad if previous else None)
        loss = forward_backward(built, batches, denominator)
        status = self.word.read()
        if previous is not None:
            self.settle(previous, status.previous_bad)
        norm, bad = update_weights(built, lr=learning_rate(self.config, step), max_norm=self.config.training.max_norm)
        self.pending = Pending(step=step, loss=loss, norm=norm.total, local_norms_N=norm.local_N, bad=bad)
        return status.tokens, status.stop_exit_code

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

    def report(self, tokens: int) -> None:
        """Waits for the queued step, then writes its figures; loss and norm are those of the whole world."""
        pending = self.pending
        assert pending is not None, "no step is queued"
        total = pending.loss.clone() if self.built.counts_loss else torch.zeros_like(pending.loss)
        dist.all_reduce(total)
        loss_sum, grad_norm, bad = torch.stack((total, pending.norm.double(), pending.bad.double())).tolist()
        self.settle(pending, bool(bad))
        speed = self.meter.report(time.perf_counter())
        self.recorder.write("memory", **memory_fields(self.built.device))
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
            breakdown={
                "data_s": speed.data_s,
                "compute_s": None,
                "exposed_comm_s": None,
                "bubble_s": None,
                "host_s": None,
                "other_s": max(0.0, speed.step_s - speed.data_s),
            },
        )


def forward_backward(built: Built, batches: Sequence[Batch], denominator: Tensor) -> Tensor:
    """Gradients of one optimizer step; returns this rank's sum of losses, float64, not divided.

    Every loss sum is divided by the one denominator before backward, so that all that follows,
    over accumulation steps and ranks, is sums.
    """
    loss_sum = torch.zeros((), dtype=torch.float64, device=built.device)
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        tokens_BS, labels_BS = _to_device(batch.tokens_BS, built.device), _to_device(batch.labels_BS, built.device)
        positions_BS = None if batch.positions_BS is None else _to_device(batch.positions_BS, built.device)
        if built.pipeline is not None:
            loss_sum += built.pipeline.step(
                tokens_BS, labels_BS, positions_BS, denominator=denominator, last_accumulation=last
            )
        else:
            (part,) = built.parts
            set_last_accumulation(part, last)
            loss = part(tokens_BS, labels_BS, positions_BS)
            (loss / denominator).backward()
            loss_sum += loss.detach()
    return loss_sum


def update_weights(built: Built, *, lr: float, max_norm: float) -> tuple[GradientNorm, Tensor]:
    """Clips, updates, drops the gradients; gives their norm, and 1.0 where it is not finite and nothing was changed."""
    norm = gradient_norm(
        built.gradients, pipeline=None if built.pipeline is None else built.world.axes["pp"].get_group()
    )
    bad = norm.total.isfinite().logical_not().float()
    update(
        built.optimizer,
        lr=lr,
        divisor=clip_divisor(norm.total, max_norm) if max_norm > 0 else None,
        bad=bad,
    )
    if built.gathers_float8:
        after_update(built.parts)
    built.optimizer.zero_grad()
    return norm, bad


def _to_device(array: Any, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
