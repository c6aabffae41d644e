"""What ranks tell each other about a step: tokens, wishes to stop, a bad gradient, what the next one lacks.

Knows the one small collective of a step and how its answer reaches the CPU without making the
device wait. Does not know what is computed in a step (step.py), nor what is done about the answer (training.py).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.ahead import Ahead
from engine.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from engine.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The answer, the same on all ranks: `tokens` valid in the step, signals seen, whether the step before was bad.

    `ended` and `failed` are the numbers of ranks that have no batches for the next step: since their data ended, or
    since reading it went wrong. `profile`: rank 0 asks that the step after the next be profiled.
    """

    tokens: int
    interrupts: int
    terminations: int
    previous_bad: bool
    ended: int
    failed: int
    profile: bool = False

    @property
    def stop_exit_code(self) -> int | None:
        """The exit code that all ranks are asked to end with; None: go on."""
        if self.interrupts:
            return EXIT_INTERRUPTED
        return EXIT_TERMINATED if self.terminations else None

    @property
    def has_next(self) -> bool:
        """Whether every rank has what the next step takes."""
        return not self.ended and not self.failed


class StatusWord:
    """Seven counts of a step: summed over the world on the device at its beginning, read by the CPU later.

    The CPU reads when it has queued the step's forward and backward and before it queues the
    update: the device is then at work, and a bad step before this one can still stop this one's update.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._host = torch.zeros(7, dtype=torch.int64, pin_memory=self._on_gpu)
        self._copied = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def send(
        self, *, tokens: int, stop: Stop, previous_bad: Tensor | None, ahead: Ahead, profile: bool = False
    ) -> Tensor:
        """Begins a step; returns its denominator: valid tokens of all ranks, at least 1, a float32 on the device.

        `tokens` are this rank's; `previous_bad` (0 or 1) is already the same on all ranks; `ahead` holds what this
        rank has read for the step after this one. `profile` is rank 0's.
        """
        counts = torch.tensor(
            [tokens, stop.interrupts, stop.terminations, 0, ahead.has_ended, ahead.failure is not None, profile],
            dtype=torch.int64,
            pin_memory=self._on_gpu,
        )
        word = counts.to(self._device, non_blocking=True)
        dist.all_reduce(word)
        if previous_bad is not None:
            word[3] = previous_bad
        self._host.copy_(word, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return word[0].clamp(min=1).float()

    def read(self) -> Status:
        """Waits until the device has reached the beginning of the step."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens, interrupts, terminations, bad, ended, failed, profile = self._host.tolist()
        return Status(
            tokens=tokens,
            interrupts=interrupts,
            terminations=terminations,
            previous_bad=bool(bad),
            ended=ended,
            failed=failed,
            profile=bool(profile),
        )


class NonFiniteStep(RuntimeError):
    """Loss or gradient of a step is not finite; says where first, the same on all ranks."""

    def __init__(self, *, step: int, rank: int, host: str, what: str) -> None:
        self.step, self.rank, self.host = step, rank, host
        super().__init__(f"step {step}: {what} is not finite on rank {rank}; weights are those of step {step - 1}")


def find_non_finite(
    *, step: int, loss: Tensor, names: Sequence[str], local_norms_N: Tensor, model: Sequence[str]
) -> NonFiniteStep:
    """Asks all ranks where the bad step began; a collective, for a run that is about to end.

    `names` are this rank's weights, `model` all of the whole model in their order. A rank whose own
    loss is not finite comes first, for the gradients of all ranks follow from it. Else it is the first
    weight in the order of the model, on the lowest rank that holds a bad part of its gradient,
    after gradients were summed.
    """
    places = {name: index for index, name in enumerate(model)}
    finite = local_norms_N.isfinite().tolist()
    first = min((places[name] for name, good in zip(names, finite, strict=True) if not good), default=None)
    mine = (bool(loss.isfinite()), first, model[first] if first is not None else None, socket.gethostname())
    everyone: list[tuple[bool, int | None, str | None, str]] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, (loss_is_finite, _, name, host) in enumerate(everyone):
        if not loss_is_finite:
            after = f"the loss (and the gradient of {name})" if name else "the loss"
            return NonFiniteStep(step=step, rank=rank, host=host, what=after)
    bad = [(index, rank) for rank, (_, index, _, _) in enumerate(everyone) if index is not None]
    if not bad:  # each part is finite, and only the sum of their squares is not
        return NonFiniteStep(step=step, rank=0, host=everyone[0][3], what="the norm of the gradient")
    _, rank = min(bad)
    return NonFiniteStep(step=step, rank=rank, host=everyone[rank][3], what=f"the gradient of {everyone[rank][2]}")
