"""Pipeline parallelism: parts of the model on several ranks, and microbatches that travel between them.

Knows torch's stages and schedules, what travels (the residual stream forward, its gradient back), and
when FSDP adds up gradients: once a schedule step, after the last microbatch. Does not know how the
layers were split (planner/schedule.py) or when an optimizer step is over (loop.py).

The private names of `torch.distributed.pipelining` stand here, and the one of FSDP that a stage needs:
tried on 2.13, and on 2.11's pipelining. B sequences of a rank, M of one microbatch, S, D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from engine.config import ScheduleName
from engine.model.llama import Decoder
from engine.planner.schedule import SINGLE_STAGE


class Pipeline:
    """A schedule over the parts that this rank holds."""

    def __init__(self, stages: list[Stage], *, schedule: ScheduleName, microbatches: int, microbatch_size: int) -> None:
        self.stages, self.microbatch_size = stages, microbatch_size
        self._losses: list[Tensor] = []
        self._denominator = torch.ones(())
        held: Any = stages[0] if schedule in SINGLE_STAGE else stages
        self.schedule: Any = get_schedule_class(schedule)(held, microbatches, loss_fn=self._divide, scale_grads=False)

    def _divide(self, loss: Tensor, _: Tensor) -> Tensor:
        """What backward starts from; the undivided sum is kept for the caller of `step`."""
        self._losses.append(loss.detach())
        return loss / self._denominator

    def step(
        self,
        tokens_BS: Tensor,
        labels_BS: Tensor,
        positions_BS: Tensor | None,
        *,
        denominator: Tensor,
        last_accumulation: bool,
    ) -> Tensor:
        """Forward and backward of all microbatches of one accumulation step; gradients are added to those there are.

        Every loss sum is divided by `denominator`, a scalar on the device. Gives this rank's sum of
        losses, float64 and not divided, which is 0 where the last part is not. Raises what a part raises.
        """
        self._losses.clear()
        self._denominator = denominator
        for stage in self.stages:
            stage.sums_copies = last_accumulation
        # Every part is given all of it and takes what it needs; torch 2.11 takes no None.
        beside = {"labels_BS": labels_BS} | ({} if positions_BS is None else {"positions_BS": positions_BS})
        first = (tokens_BS,) if any(stage.is_first for stage in self.stages) else ()
        try:
            self.schedule.step(*first, target=labels_BS, return_outputs=False, **beside)
        except RuntimeError as wrapped:
            # torch tells where, in an exception of its own, and the kind of failure is lost.
            raise (wrapped.__cause__ or wrapped) from None
        nothing = torch.zeros((), dtype=torch.float64, device=labels_BS.device)
        return torch.stack(self._losses).double().sum() if self._losses else nothing

    def losses(self, tokens_BS: Tensor, labels_BS: Tensor, positions_BS: Tensor | None) -> Tensor:
        """This rank's sum of losses over microbatches, forward only: float64, 0 where the last part is not.

        Each microbatch passes through all parts in their order, whatever the schedule: of one part a rank the next
        microbatch follows at once, of several only when this one has come out.
        """
        size, mine = self.microbatch_size, {stage.stage_index: stage for stage in self.stages}
        total = torch.zeros((), dtype=torch.float64, device=labels_BS.device)
        for first in range(0, len(tokens_BS), size):
            rows = slice(first, first + size)
            positions = None if positions_BS is None else positions_BS[rows]
            x = tokens_BS[rows]
            for index in sorted(mine):
                stage = mine[index]
                if not stage.is_first and index - 1 not in mine:
                    x = stage.received()
                x = stage.submod(x, labels_BS=labels_BS[rows], positions_BS=positions)
                if stage.is_last:
                    total += x.double()
                elif index + 1 not in mine:
                    stage.send_on(x)
        return total


class Stage(PipelineStage):
    """torch's stage, with four things changed.

    It has buffers for the microbatches that are under way only. torch keeps two for every microbatch of
    the step, for good: 8 GiB for 128 microbatches of the 405B model at TP 8. Copies of the model
    sum their gradients when `sums_copies` says so, not in every accumulation step. And weight gradients that
    have a backward of their own are added up in the precision of gradient sums, as all others are. And a
    microbatch whose backward is over leaves nothing behind.
    """

    sums_copies = True

    def __init__(
        self,
        part: Decoder,
        index: int,
        count: int,
        *,
        mesh: DeviceMesh,
        takes: Tensor,
        gives: Tensor,
        device: Any,
        collect: Callable[[], None] | None,
    ) -> None:
        super().__init__(part, index, count, device, input_args=takes, output_args=gives, group=mesh.get_group())
        self._takes, self._gives, self._collect = takes, gives, collect

    def received(self) -> Tensor:
        """What the part before this one, on another rank, has sent on."""
        x = torch.empty(self._takes.shape, dtype=self._takes.dtype, device=self.device)
        self._exchange(dist.irecv, x, self.stage_index - 1)
        return x

    def send_on(self, x: Tensor) -> None:
        """Sends to the rank of the part after this one."""
        self._exchange(dist.isend, x.contiguous(), self.stage_index + 1)

    def _exchange(self, way: Any, x: Tensor, index: int) -> None:
        peer = self.stage_index_to_group_rank[index]
        for work in dist.batch_isend_irecv([dist.P2POp(way, x, group=self.group, group_peer=peer)]):
            work.wait()

    def _get_init_p2p_neighbors_ops(self) -> Any:
        # 2.11 greets the neighbours of a stage, and gloo cannot send to its own rank, where a V turns.
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        made = super()._prepare_forward_infra(*args, **kwargs)
        if not self.is_first:
            for received in self.args_recv_info.values():
                self._fill(received, None)
        return made

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        made = super()._prepare_backward_infra(*args, **kwargs)
        for received in self.grad_recv_info.values():
            self._fill(received, None)
        return made

    def clear_runtime_states(self) -> None:
        """Between schedule steps: nothing is kept."""
        self.fwd_cache.clear()
        self.output_chunks.clear()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """What receives a microbatch's input."""
        if not self.is_first:
            self._fill(self.args_recv_info[fwd_chunk_id], self._takes)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """What receives the gradient of a microbatch's output."""
        if self.has_backward and not self.is_last:
            self._fill(self.grad_recv_info[bwd_chunk_id], self._gives)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward of a microbatch; from here on its graph holds the input, and nothing else does."""
        received: tuple[Any, ...] = () if self.is_first else self.args_recv_info[fwd_chunk_id]
        for info in received:
            # 2.13 does so itself.
            info.buffer.requires_grad_(self.has_backward and torch.is_grad_enabled())
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._fill(received, None)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Backward of a microbatch, whole or for the input alone."""
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._fill(self.grad_recv_info[bwd_chunk_id], None)
        if kwargs.get("loss") is not None:
            # The schedule keeps every loss to the end of the step, and its graph would keep the microbatch's input.
            kwargs["loss"].detach_()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Backward of a microbatch for the weights."""
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        # Hooks were passed in the backward for the input, when these gradients were not there yet.
        self._end_backward()

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Adds up the gradients of all microbatches over ranks, and frees gathered weights."""
        assert grad_scale_factor == 1, "the loss is a sum over one denominator"
        if self._collect is not None:
            return
        part = cast(FSDPModule, self.submod)
        part.set_is_last_backward(True)
        part.set_reshard_after_backward(True)
        part.set_requires_gradient_sync(True)
        part.set_requires_all_reduce(self.sums_copies)
        self._end_backward()

    def _end_backward(self) -> None:
        """The end of a backward, for all weights of the part: accumulates in place, or adds up over ranks (FSDP)."""
        if self._collect is not None:
            self._collect()
            return
        fully_shard.state(self.submod)._root_post_backward_final_callback()  # type: ignore[attr-defined]

    def _fill(self, received: Iterable[Any], like: Tensor | None) -> None:
        """Makes buffers, or drops them; what is under way or in a graph is held by others."""
        for info in received:
            info.buffer = None if like is None else torch.empty(like.shape, dtype=like.dtype, device=self.device)


def build_pipeline(
    parts: Iterable[Decoder],
    mesh: DeviceMesh,
    *,
    indices: Iterable[int],
    stage_count: int,
    schedule: ScheduleName,
    microbatches: int,
    microbatch_size: int,
    context_ranks: int,
    dtype: torch.dtype,
    device: torch.device,
    collect: Callable[[], None] | None = None,
) -> Pipeline:
    """The schedule over a rank's parts, which are already sharded; every rank of `mesh` builds its own.

    Parts without FSDP have `collect`, which adds up the gradients that a backward for weights alone has left.
    `dtype` is that of activations. Sizes are told beforehand, so that no rank asks another for them:
    tokens (M, S) go in, (M, S / context ranks / tensor ranks, D) travels, and a scalar comes out.
    """
    stages: list[Stage] = []
    for part, index in zip(parts, indices, strict=True):
        pieces = context_ranks * part.sequence_pieces
        with torch.device("meta"):
            tokens_MS = torch.empty(microbatch_size, part.seq_len, dtype=torch.int64)
            h_MSD = torch.empty(
                microbatch_size, part.seq_len // pieces, part.shape.dim, dtype=dtype, requires_grad=True
            )
            loss = torch.empty((), dtype=torch.float32, requires_grad=True)
        takes = tokens_MS if index == 0 else h_MSD
        gives = loss if index == stage_count - 1 else h_MSD
        stages.append(
            Stage(part, index, stage_count, mesh=mesh, takes=takes, gives=gives, device=device, collect=collect)
        )
    return Pipeline(stages, schedule=schedule, microbatches=microbatches, microbatch_size=microbatch_size)


def without_peers(pipeline: Pipeline) -> None:
    """Makes the schedule run in a process group that sends nothing.

    From 2.13 on ranks vote, before the first step, on whether they all know their sizes, and read the answer's
    value; 2.11 only sends numbers that nobody reads.
    """
    if hasattr(pipeline.schedule, "_warmup_p2p"):
        from torch.distributed.pipelining._utils import InferenceMode

        for stage in pipeline.stages:
            stage._inference_mode = InferenceMode.STATIC
        pipeline.schedule._warmup_p2p = lambda *_: None
