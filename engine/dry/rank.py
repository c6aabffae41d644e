"""One rank of a run, built and stepped without its GPU and without the others.

Knows how the real engine is led through one optimizer step on fake tensors, which have sizes and no
values, in a process group that sends nothing. Does not know which ranks are worth it (dryrun.py).
torch's fake tensors and fake process group stand here, tried on 2.13.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from engine.data.batch import Batch
from engine.dry.holding import Holding, Moment, Peak
from engine.dry.kernels import keep_as_a_gpu_does
from engine.dry.place import told
from engine.lr import learning_rate
from engine.model.llama import Decoder
from engine.optim import allocate
from engine.parallel.pipeline import without_peers
from engine.planner.plan import Plan
from engine.planner.update import updates_in_place
from engine.step import forward_backward, update_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What came of it. `parameters` are unsharded; `peaks_bytes` are those of each moment; `error` None: it ran."""

    parameters: int | None
    peak: Peak
    peaks_bytes: dict[Moment, int]
    seconds: float
    error: str | None


_PHASES: dict[Moment, str] = {
    "build": "while it was built",
    "forward": "in forward or backward",
    "backward": "in forward or backward",
    "optimizer": "in the optimizer's update",
}


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
    fake, holding = FakeTensorMode(allow_non_fake_inputs=True), Holding()
    parts: list[Decoder] = []
    parameters: int | None = None
    error: str | None = None

    def fill(part: Decoder, seed: int, device: torch.device) -> None:  # noqa: ARG001 - nothing is drawn
        """Gives a part its storages, of sizes only; it was split and sharded on the meta device before."""
        parts.append(part)
        with fake, holding:
            part.to_empty(device=device)
            part.rebuild(device)

    # Pipeline ranks are outermost.
    with _alone(pp_rank * plan.world_size // plan.mesh.pp, plan.world_size):
        try:
            built = build(config, plan, torch.device("cpu"), fill=fill)
            parameters = sum(weight.numel() for weight in built.weights.values())
            if built.whole is not None:
                # Copies in another precision were made beside what was filled.
                for copy in built.whole.copies.values():
                    holding.add(copy)
            if plan.gpu != "cpu":
                keep_as_a_gpu_does(built.parts)
            if built.pipeline is not None:
                without_peers(built.pipeline)
            in_place = plan.gpu != "cpu" and updates_in_place(config)
            take_step(config, built, _batches(config, plan), holding=holding, fake=fake, updates_in_place=in_place)
        except Exception as raised:  # noqa: BLE001 - whatever is wrong with a rank is what a dry run is to find
            error = told(raised, parts, _PHASES[holding.moment])
    return Stepped(
        parameters=parameters,
        peak=holding.peak,
        peaks_bytes=holding.peaks_bytes,
        seconds=time.perf_counter() - began_s,
        error=error,
    )


def take_step(
    config: Config,
    built: Built,
    batches: Sequence[Batch],
    *,
    holding: Holding,
    fake: AbstractContextManager[Any],
    updates_in_place: bool = False,
) -> None:
    """Makes the optimizer's states, then one whole step as it is in the middle of a run; `fake` makes what is new fake.

    States come before the first step here, because every later step has them beside its activations. Of an update
    that `updates_in_place` only what stands when it begins is counted: a GPU's kernel makes nothing beside it.
    """
    # Counts of updates are real numbers even so, because the engine reads them.
    with holding, holding.during("optimizer", "optimizer_states"):
        allocate(built.optimizer)
    with fake, holding, holding.during("forward", "activations"):
        loss = forward_backward(built, batches, torch.ones((), dtype=torch.float32))
    counting: AbstractContextManager[Any] = nullcontext() if updates_in_place else holding
    with holding.during("optimizer", "update"), counting, _NothingIsBad():  # type: ignore[no-untyped-call]
        holding.look()
        update_weights(built, loss=loss, lr=learning_rate(config, 1), max_norm=config.training.max_norm)


def _batches(config: Config, plan: Plan) -> list[Batch]:
    """The batches of a step: on a CPU with the mask of one document a sequence, where documents are masked.

    On GPUs FlexAttention keeps no mask of every query and key, and for the rest what plain attention keeps.
    """
    shape = (plan.local_batch_size, config.training.seq_len)
    tokens_BS = np.zeros(shape, dtype=np.int64)
    positions_BS = np.broadcast_to(np.arange(shape[1]), shape).copy()
    masked = config.data.document_mask and plan.gpu == "cpu"
    batch = Batch(tokens_BS=tokens_BS, labels_BS=tokens_BS, positions_BS=positions_BS if masked else None)
    return [batch] * plan.gradient_accumulation_steps
