"""One rank of a run, built and stepped without its GPU and without the others.

Knows how the real engine is led through one optimizer step on fake tensors, which have sizes and no
values, in a process group that sends nothing. Does not know which ranks are worth it (dryrun.py).
torch's fake tensors and fake process group stand here, tried on 2.13.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import Built, build
from engine.config import Config
from engine.data.loader import Batch
from engine.dry.holding import Holding, Moment, Peak
from engine.dry.kernels import keep_as_a_gpu_does
from engine.dry.place import told
from engine.loop import forward_backward, update_weights
from engine.lr import learning_rate
from engine.model.llama import Decoder
from engine.optim import allocate
from engine.parallel.pipeline import without_peers
from engine.planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What came of it. `parameters` are unsharded; `peaks_bytes` are those of each moment; `error` None: it ran."""

    parameters: int | None
    peak: Peak
    peaks_bytes: dict[Moment, int]
    seconds: float
    error: str | None


class _NothingIsBad(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers 0 where the engine asks for the value of a fake tensor: it only ever asks whether a step is bad."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0
        return func(*args, **(kwargs or {}))


@contextmanager
def _alone(rank: int, world_size: int) -> Iterator[None]:
    """The group of all ranks, as this one sees it; its collectives send nothing and return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def step_rank(config: Config, plan: Plan, pp_rank: int) -> Stepped:
    """Builds and steps the first rank of a pipeline rank: no other of them holds more.

    Every error that the engine raises is told in words, with the layer it arose in.
    """
    began_s = time.perf_counter()
    work = _Work(config, plan)
    error: str | None = None
    # Pipeline ranks are outermost.
    with _alone(pp_rank * plan.world_size // plan.mesh.pp, plan.world_size):
        try:
            work.run()
        except Exception as raised:  # noqa: BLE001 - whatever is wrong with a rank is what a dry run is to find
            error = told(raised, work.parts, work.phase)
    weights = work.built.weights.values() if work.built else ()
    return Stepped(
        parameters=sum(weight.numel() for weight in weights) if work.built else None,
        peak=work.holding.peak,
        peaks_bytes=dict(work.holding.peaks_bytes),
        seconds=time.perf_counter() - began_s,
        error=error,
    )


class _Work:
    """The step, and how far it came."""

    def __init__(self, config: Config, plan: Plan) -> None:
        self.config, self.plan = config, plan
        self.holding = Holding()
        self.phase = "while it was built"
        self.parts: list[Decoder] = []
        self.built: Built | None = None
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._nothing_is_bad = _NothingIsBad()  # type: ignore[no-untyped-call]

    def run(self) -> None:
        """Builds, gives every weight its optimizer state, and takes one whole step."""
        holding = self.holding
        built = self.built = build(self.config, self.plan, torch.device("cpu"), fill=self._fill)
        if self.plan.gpu != "cpu":
            keep_as_a_gpu_does(built.parts)
        if built.pipeline is not None:
            without_peers(built.pipeline)
        self.phase = "while its optimizer states were made"
        # Counts of updates are real numbers, because the engine reads them.
        with holding, holding.during("optimizer", "optimizer_states"):
            allocate(built.optimizer)
        self.phase = "in forward or backward"
        with self._fake, holding, holding.during("forward", "activations"):
            forward_backward(built, self._batches(), torch.ones((), dtype=torch.float32))
        self.phase = "in the optimizer's update"
        with holding, holding.during("optimizer", "update"), self._nothing_is_bad:
            update_weights(built, lr=learning_rate(self.config, 1), max_norm=self.config.training.max_norm)

    def _fill(self, part: Decoder, seed: int, device: torch.device) -> None:  # noqa: ARG002 - nothing is drawn
        """Gives a part its storages, of sizes only; it was split and sharded on the meta device before."""
        self.parts.append(part)
        with self._fake, self.holding:
            part.to_empty(device=device)
            part.rebuild(device)

    def _batches(self) -> list[Batch]:
        shape = (self.plan.local_batch_size, self.config.training.seq_len)
        tokens_BS = np.zeros(shape, dtype=np.int64)
        return [Batch(tokens_BS=tokens_BS, labels_BS=tokens_BS)] * self.plan.gradient_accumulation_steps
