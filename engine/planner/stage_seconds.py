"""Seconds of one microbatch on one pipeline stage: its kernels, and what is sent between them.

Knows that stages with as many layers and the same ends are alike, in one step and in all that compute and send the
same. Does not know how stages are put together (timing, bubbles).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from engine.config import Config
from engine.planner.activations import Work
from engine.planner.bubbles import StageTime
from engine.planner.comms import Group
from engine.planner.compute import StageCompute, stage_compute, way_of
from engine.planner.hiding import Pass
from engine.planner.kernels import Kernels
from engine.planner.messages import NOTHING, Passes, context_messages, tensor_messages
from engine.planner.overlap import tensor_overlap
from engine.planner.recompute import Recompute
from engine.planner.stack import Stack

_Key: TypeAlias = tuple[int, int, bool, bool]
"""How many layers, how many of them are computed again, and whether embedding and head are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """One microbatch on one stage; `tensor_open` is what products do not hide of `tensor_s`, `time` has all in it."""

    compute: StageCompute
    tensor_s: float
    tensor_open: Passes
    context: Passes
    time: StageTime


class Stages:
    """The stages of a step, each timed when somebody asks for it."""

    def __init__(
        self,
        config: Config,
        work: Work,
        recompute: Recompute,
        *,
        stage_count: int,
        slower: float,
        kernels: Kernels,
        tp: Group,
        cp: Group,
        stack: Stack,
    ) -> None:
        self._config, self._work, self._recompute, self._stack = config, work, recompute, stack
        self._last, self._slower, self._kernels, self._tp, self._cp = stage_count - 1, slower, kernels, tp, cp
        # Ranks have pieces of each sequence, NCCL puts them one behind the other: with one sequence that is its order.
        self._lays_out_again = work.sequences > 1 and not stack.sequence_is_outermost
        float8 = config.quantize.dense.float8
        low = float8.enable, float8.recipe_name
        hidden, way = tensor_overlap(config, stack), way_of(config, stack)
        self._made = _alike(work, recompute, slower, kernels, tp, cp, stack, low, hidden, way)
        block = self._stage((1, int(recompute.every is None), False, False), (0,)).time
        self.block = Pass(forward_s=block.forward_s, backward_s=block.input_gradient_s + block.weight_gradient_s)

    def of(self, index: int, layers: tuple[int, ...]) -> StageSeconds:
        """One stage by its place and layers."""
        again = len(layers) if self._recompute.every is None else sum(map(self._recompute.repeats, layers))
        return self._stage((len(layers), again, index == 0, index == self._last), layers)

    def _stage(self, key: _Key, layers: tuple[int, ...]) -> StageSeconds:
        if key not in self._made:
            self._made[key] = self._new(layers, again=key[1], has_embedding=key[2], has_head=key[3])
        return self._made[key]

    def _new(self, layers: tuple[int, ...], *, again: int, has_embedding: bool, has_head: bool) -> StageSeconds:
        work, recompute, stack, kernels = self._work, self._recompute, self._stack, self._kernels
        ends = {"has_embedding": has_embedding, "has_head": has_head}
        usual = stage_compute(self._config, work, recompute, layers=layers, kernels=kernels, stack=stack, **ends)
        compute = StageCompute(
            forward_s=self._slower * usual.forward_s,
            input_gradient_s=self._slower * usual.input_gradient_s,
            weight_gradient_s=self._slower * usual.weight_gradient_s,
            recompute_s=self._slower * usual.recompute_s,
        )
        tensor_s, tensor, context = 0.0, NOTHING, NOTHING
        if self._tp.size > 1:
            copy_s = kernels.memory_s(2 * work.whole_stream_bytes) if self._lays_out_again else 0.0
            sent = tensor_messages(self._config, work, recompute, self._tp, stack, copy_s=copy_s)
            tensor_s = sum(sent.stage(blocks=len(layers), again=again, **ends))
            tensor = sent.stage(blocks=len(layers), again=again, in_the_open=True, **ends)
        if self._cp.size > 1:
            context = context_messages(work, recompute, self._cp, self._attention_s()).stage(
                blocks=len(layers), again=again, **ends
            )
        return StageSeconds(
            compute=compute,
            tensor_s=tensor_s,
            tensor_open=tensor,
            context=context,
            # What is computed again delays the gradient of the input.
            time=StageTime(
                forward_s=compute.forward_s + tensor[0] + context[0],
                input_gradient_s=compute.input_gradient_s
                + compute.recompute_s
                + tensor[1]
                + tensor[2]
                + context[1]
                + context[2],
                weight_gradient_s=compute.weight_gradient_s,
            ),
        )

    def _attention_s(self) -> float:
        """Attention of one block in forward."""
        shape, work = self._work.shape, self._work
        heads = -(-shape.n_heads // work.tp)
        return self._kernels.attention_forward_s(work.tokens, self._config.training.seq_len, heads, shape.head_dim)


@cache
def _alike(*_: object) -> dict[_Key, StageSeconds]:
    """The stages that were timed already, of all steps that have in common what their seconds depend on."""
    return {}
