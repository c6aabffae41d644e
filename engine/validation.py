"""The loss over text that nothing is learnt from, every so many steps, the same number in every layout.

Knows which batches a validation reads, and how its loss comes together: sums over all ranks, divided once by all valid
tokens. Does not know how a part of the model computes (step.py), nor when training goes on.

A validation reads from the beginning of its corpus, as it lies, each time the same: validation.steps global batches, or
all there is. Samples that make no whole global batch are read in one that is filled up with rows whose labels count
nowhere; only the tokens after the last whole sample, fewer than seq_len, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from engine.build import Built
from engine.config import Config
from engine.data.batch import IGNORE, Batch
from engine.data.loader import Loader
from engine.data.summary import validation_batches
from engine.pulse import Pulse
from engine.step import forward_losses
from engine.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """One validation: the mean loss of all valid tokens, and how many those were."""

    loss: float
    tokens: int
    batches: int
    seconds: float


class Validation:
    """The validations of a run; every rank asks and calls it at the same steps."""

    def __init__(self, config: Config, built: Built, loader: Loader, *, pulse: Pulse, stop: Stop) -> None:
        self._built, self._loader, self._pulse, self._stop = built, loader, pulse, stop
        self._freq = config.validation.freq
        self._batches = validation_batches(config, loader.index)
        # The first one compiles.
        self._allowed = (config.comm.init_timeout_seconds, "comm.init_timeout_seconds")
        self._later = (config.comm.train_timeout_seconds, "comm.train_timeout_seconds")

    def is_due(self, step: int, *, is_last: bool = False) -> bool:
        """Whether a validation follows `step`: every validation.freq, and after the last."""
        return is_last or step % self._freq == 0

    def run(self, step: int) -> Validated | None:
        """The loss with the weights after `step`; None where ranks were asked to stop before it was known."""
        began_s, built = time.perf_counter(), self._built
        total = torch.zeros(2, dtype=torch.float64, device=built.device)
        stopping = Agreed(built.device)
        allowed_s, key = self._allowed
        with self._pulse.within("validate", allowed_s, f"{key} = {allowed_s}"):
            for number in range(1, self._batches + 1):
                self._pulse.at("validate", step)
                stopping.ask(bool(self._stop.interrupts or self._stop.terminations))
                batches = self._read(number)
                if built.counts_loss:
                    total[0] += forward_losses(built, batches)
                else:
                    forward_losses(built, batches)
                if built.world.counts_tokens:
                    total[1] += sum(batch.valid_tokens for batch in batches)
                if stopping.answer():
                    return None
            dist.all_reduce(total)
            loss_sum, tokens = total.tolist()
        self._allowed = self._later
        seconds = time.perf_counter() - began_s
        loss = loss_sum / tokens if tokens else float("nan")
        return Validated(loss=loss, tokens=int(tokens), batches=self._batches, seconds=seconds)

    def _read(self, number: int) -> Sequence[Batch]:
        """This rank's part of a global batch; rows beyond the end of the corpus have no labels."""
        reader = self._loader.reader
        beyond = reader.index.sample_numbers(number, reader.data_rank) >= reader.index.numbers
        return [_without(batch, rows) for batch, rows in zip(reader.batches(number), beyond, strict=True)]


def _without(batch: Batch, rows_B: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Batch:
    return replace(batch, labels_BS=np.where(rows_B[:, None], IGNORE, batch.labels_BS)) if rows_B.any() else batch


class Agreed:
    """Whether any rank said yes, known without waiting for what was queued after the question."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._host = torch.zeros((), dtype=torch.int64, pin_memory=self._on_gpu)
        self._copied = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def ask(self, mine: bool) -> None:
        """Begins to ask; a collective."""
        word: Tensor = torch.tensor(int(mine), dtype=torch.int64, pin_memory=self._on_gpu)
        word = word.to(self._device, non_blocking=True)
        dist.all_reduce(word)
        self._host.copy_(word, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def answer(self) -> bool:
        """Waits until the device has reached the question."""
        if self._copied is not None:
            self._copied.synchronize()
        return bool(self._host)
