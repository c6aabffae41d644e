"""Seconds that one pipeline rank computes, without communication: one microbatch, and the update of a step.

Knows the kernels of a block, of the ends and of the optimizer, and what backward computes again. Does not
know how fast a kernel is (kernels), nor collectives, schedules or overlap (timing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from engine.config import Config
from engine.planner.activations import FLOAT32, Work
from engine.planner.kernels import Kernels, Precision
from engine.planner.memory import BYTES
from engine.planner.recompute import Recompute
from engine.planner.stack import Stack
from engine.shapes import ModelShape, block_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCompute:
    """One microbatch on one pipeline stage. Backward is the sum of the last three."""

    forward_s: float = 0.0
    input_gradient_s: float = 0.0
    weight_gradient_s: float = 0.0
    recompute_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """All of backward."""
        return self.input_gradient_s + self.weight_gradient_s + self.recompute_s

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How products are computed, by weight name; hashable, so that one block is counted once."""

    low: Precision | None
    high: Precision
    filters: tuple[str, ...]
    gathered_in_float8: bool
    seq_len: int

    def of(self, name: str) -> Precision:
        """The precision of a linear layer's products."""
        return self.high if self.low is None or any(part in name for part in self.filters) else self.low


def stage_compute(
    config: Config,
    work: Work,
    recompute: Recompute,
    *,
    layers: int | tuple[int, ...],
    has_embedding: bool,
    has_head: bool,
    kernels: Kernels,
    stack: Stack,
) -> StageCompute:
    """Seconds of one microbatch on a stage of these layers, given by number or by index in the whole model."""
    way = _way(config)
    indices = tuple(range(layers)) if isinstance(layers, int) else layers
    block = _block(work, way, kernels)
    again = _again_s(work, way, recompute, kernels, stack)
    every = recompute.every
    repeated = len(indices) if every is None else sum(map(recompute.repeats, indices))
    ends = _ends(work, way, has_embedding, has_head, kernels)
    count = len(indices)
    return StageCompute(
        forward_s=count * block.forward_s + ends.forward_s,
        input_gradient_s=count * block.input_gradient_s + ends.input_gradient_s,
        weight_gradient_s=count * block.weight_gradient_s + ends.weight_gradient_s,
        recompute_s=repeated * again,
    )


def optimizer_s(config: Config, local_parameters: int, kernels: Kernels) -> float:
    """Seconds of clipping and updating so many parameters that a rank keeps: a norm, then one pass over all states.

    Fused Adam reads weight, gradient and two means, and writes all but the gradient.
    """
    width = BYTES[config.training.dtype]
    norm = width if config.training.max_norm > 0 else 0
    states = 0 if config.optimizer.name == "SGD" else 2
    return kernels.memory_s(local_parameters * width * (norm / width + 3 + 2 * states))


def gather_copies_s(config: Config, parameters: int, *, fsdp: int, kernels: Kernels) -> float:
    """Seconds of FSDP's own copies around one gathering of `parameters` (of one tensor rank): cast in, lay out."""
    width, kept = BYTES[config.training.mixed_precision_param], BYTES[config.training.dtype]
    return kernels.memory_s(parameters * (2 * width + (kept + width) / fsdp + (4 * width if fsdp == 1 else 0)))


def reduce_copies_s(config: Config, parameters: int, *, fsdp: int, kernels: Kernels) -> float:
    """Seconds of FSDP's own copies around one summing of the gradients of `parameters`: widen and cut in rows."""
    width, reduced = BYTES[config.training.mixed_precision_param], BYTES[config.training.mixed_precision_reduce]
    return kernels.memory_s(parameters * (width + reduced + (2 * reduced if fsdp == 1 else 0)))


def _way(config: Config) -> _Way:
    float8, mx = config.quantize.dense.float8, config.quantize.dense.mx
    low: Precision | None = None
    if float8.enable:
        low = "float8" if float8.recipe_name == "tensorwise" else "float8_rowwise"
    elif mx.enable:
        low = "mxfp8"
    return _Way(
        low=low,
        high=config.training.mixed_precision_param,
        filters=float8.filter_fqns if float8.enable else mx.filter_fqns,
        gathered_in_float8=float8.enable and float8.enable_fsdp_float8_all_gather,
        seq_len=config.training.seq_len,
    )


@cache
def _linears(shape: ModelShape, tp: int) -> tuple[tuple[str, int, int], ...]:
    """Name, k and n of each product of a block on one tensor rank."""
    found = []
    for name, weight in block_parameters(shape).items():
        if len(weight.shape) == 2:
            n, k = weight.shape
            n, k = (-(-n // tp), k) if weight.split == "rows" else (n, -(-k // tp))
            found.append((name, k, n))
    return tuple(found)


@cache
def _block(work: Work, way: _Way, kernels: Kernels) -> StageCompute:
    """One block without recomputation."""
    tokens, shape = work.tokens, work.shape
    forward = inputs = weights = 0.0
    for name, k, n in _linears(shape, work.tp):
        precision = way.of(name)
        forward += kernels.matmul_s(tokens, k, n, precision=precision)
        inputs += kernels.matmul_s(tokens, n, k, precision=precision)
        weights += kernels.matmul_s(n, tokens, k, precision=precision)
        if precision != way.high:
            forward += kernels.memory_s(5 * tokens * k + 5 * k * n)
            inputs += kernels.memory_s(8 * tokens * n + 5 * k * n)
            weights += kernels.memory_s(5 * tokens * k)
    heads = -(-shape.n_heads // work.tp)
    forward += kernels.attention_forward_s(tokens, way.seq_len, heads, shape.head_dim)
    inputs += kernels.attention_backward_s(tokens, way.seq_len, heads, shape.head_dim)
    moved_forward, moved_backward = _moved(work)
    return StageCompute(
        forward_s=forward + kernels.memory_s(moved_forward),
        input_gradient_s=inputs + kernels.memory_s(moved_backward),
        weight_gradient_s=weights,
    )


def _moved(work: Work) -> tuple[float, float]:
    """Bytes that the block's memory-bound kernels move in forward and in backward."""
    stream, hidden, rotated = work.stream_bytes, work.hidden_bytes, work.query_bytes + work.key_bytes
    if work.compiled:
        return 8 * stream + 2 * rotated + 3 * hidden, 14 * stream + 2 * rotated + 5 * hidden
    return 10 * stream + 24 * rotated + 5 * hidden, 20 * stream + 24 * rotated + 9 * hidden


def _again_s(work: Work, way: _Way, recompute: Recompute, kernels: Kernels, stack: Stack) -> float:
    """Seconds that one recomputed block takes again."""
    moved = kernels.memory_s(_moved(work)[0])
    # The last product is not computed again: nothing of its result is needed.
    name, k, n = next(linear for linear in _linears(work.shape, work.tp) if "w2" in linear[0])
    last = kernels.matmul_s(work.tokens, k, n, precision=way.of(name))
    whole = _block(work, way, kernels).forward_s - last
    match recompute.mode:
        case "none":
            return 0.0
        case "full":
            return whole
        case "memory_budget":
            assert recompute.budget is not None, "a memory budget has a share"
            return (1 - recompute.budget) * whole
        case "selective":
            if recompute.every is not None:
                return whole
            second = ("attention.wk.weight", "attention.wo.weight", "feed_forward.w3.weight")
            repeated = second if stack.repeats_every_second_product else ()
            return moved + sum(
                kernels.matmul_s(work.tokens, k, n, precision=way.of(name))
                for name, k, n in _linears(work.shape, work.tp)
                if name in repeated
            )


@cache
def _ends(work: Work, way: _Way, has_embedding: bool, has_head: bool, kernels: Kernels) -> StageCompute:
    """Embedding, last norm, head and loss."""
    forward = inputs = weights = 0.0
    shape, tokens, width = work.shape, work.tokens, work.width_bytes
    if has_embedding:
        rows = -(-shape.vocab_size // work.tp)
        forward += kernels.memory_s(2 * work.whole_stream_bytes)
        weights += kernels.memory_s(2 * work.whole_stream_bytes + rows * shape.dim * width)
    if has_head:
        columns = -(-shape.vocab_size // work.tp)
        precision = way.of("output")
        forward += kernels.matmul_s(tokens, shape.dim, columns, precision=precision)
        inputs += kernels.matmul_s(tokens, columns, shape.dim, precision=precision)
        weights += kernels.matmul_s(columns, tokens, shape.dim, precision=precision)
        elements = prod((tokens, columns))
        passes = (2 * width, 2 * width) if work.compiled_loss else (width + 3 * FLOAT32, width + 5 * FLOAT32)
        forward += kernels.memory_s(elements * passes[0] + 2 * work.stream_bytes)
        inputs += kernels.memory_s(elements * passes[1] + 4 * work.stream_bytes)
    return StageCompute(forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights)
