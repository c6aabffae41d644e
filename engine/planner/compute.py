"""Seconds that one pipeline rank computes, without communication: one microbatch, and the update of a step.

Knows the kernels of a block, of the ends and of the optimizer, and what backward computes again. Does not
know how fast a kernel is (kernels), nor collectives, schedules or overlap (timing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from engine.config import Config, Dtype
from engine.planner.activations import Work
from engine.planner.kernels import Kernels, Precision
from engine.planner.memory import BYTES
from engine.planner.overlap import has_async_tp
from engine.planner.recompute import Recompute
from engine.planner.stack import TITAN, Stack
from engine.planner.traffic import Scaling, backward_traffic, cast_bytes, forward_traffic, loss_traffic
from engine.planner.update import moved_bytes
from engine.shapes import ModelShape, block_parameters

# A budget of 0.5 computes 0.68 of what full recomputation does (8 layers of the 8B shape on an H200): tensors of the
# feed-forward's width are dropped first, and they are dear.
_BUDGET_CURVE = 0.55


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
class Way:
    """How products are computed, by weight name; hashable, so that one block is counted once."""

    low: Precision | None
    emulated: bool
    high: Precision
    filters: tuple[str, ...]
    gathered_in_float8: bool
    seq_len: int
    scaling: Scaling
    pieces: int
    unbalanced: bool

    def finds_largest(self, stack: Stack) -> bool:
        """Whether kernels beside products look for the largest element of what they make."""
        dynamic = stack.float8_scales == "dynamic"
        return (
            dynamic
            and self.low is not None
            and self.is_low("attention.wq")
            and self.scaling in ("tensorwise", "rowwise")
        )

    def is_low(self, name: str) -> bool:
        """Whether a linear layer's tensors are cast to low precision."""
        return self.low is not None and not any(part in name for part in self.filters)

    def of(self, name: str) -> Precision:
        """The precision in which a linear layer multiplies: emulated values are multiplied in the high one."""
        return self.high if self.low is None or self.emulated or not self.is_low(name) else self.low


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
    way = way_of(config, stack)
    indices = tuple(range(layers)) if isinstance(layers, int) else layers
    block = _block(work, way, kernels, stack)
    again = _again_s(work, way, recompute, kernels, stack)
    every = recompute.every
    repeated = len(indices) if every is None else sum(map(recompute.repeats, indices))
    ends = _ends(work, way, has_embedding, has_head, kernels, stack)
    count = len(indices)
    return StageCompute(
        forward_s=count * block.forward_s + ends.forward_s,
        input_gradient_s=count * block.input_gradient_s + ends.input_gradient_s,
        weight_gradient_s=count * block.weight_gradient_s + ends.weight_gradient_s,
        recompute_s=repeated * again,
    )


def optimizer_s(
    config: Config,
    local_parameters: int,
    kernels: Kernels,
    stack: Stack = TITAN,
    *,
    gradient: Dtype | None = None,
    copy_bytes: int = 0,
    on_gpu: bool = True,
) -> float:
    """Seconds of clipping and updating so many parameters that a rank keeps: a norm, then one pass over all states.

    Gradients are in the precision `gradient`, that of the weights where it is None; `copy_bytes` of an element are
    beside its weight and follow it.
    """
    gradient = config.training.dtype if gradient is None else gradient
    moved = moved_bytes(config, gradient=gradient, copy=copy_bytes, on_gpu=on_gpu)
    if config.training.max_norm > 0:
        moved += BYTES[gradient] * (3 if stack.scales_gradients else 1)
    return kernels.lists_s(local_parameters * moved)


def gather_copies_s(config: Config, parameters: float, *, fsdp: int, kernels: Kernels) -> float:
    """Seconds of FSDP's own copies around one gathering of `parameters` (unsharded, of one tensor rank).

    A shard is cast and copied in, the whole is copied out. On a mesh of one: cast and copied.
    """
    width, kept = BYTES[config.training.mixed_precision_param], BYTES[config.training.dtype]
    if fsdp == 1:
        return kernels.elementwise_s(parameters * (kept + 3 * width))
    float8 = config.quantize.dense.float8
    sent = 1 if float8.enable and float8.enable_fsdp_float8_all_gather else width
    return kernels.elementwise_s(parameters * (2 * sent + (kept + 3 * sent) / fsdp))


def reduce_copies_s(config: Config, parameters: float, *, fsdp: int, kernels: Kernels) -> float:
    """Seconds of FSDP's own copies around one summing of the gradients of `parameters`: widened, cut in rows.

    On a mesh of one they are copied once more.
    """
    width, reduced = BYTES[config.training.mixed_precision_param], BYTES[config.training.mixed_precision_reduce]
    # Widening runs at half the rate of a copy (2.1 of 4.3 TB/s on an H200).
    cast = (width + reduced) * (2 if reduced > width else 1)
    return kernels.elementwise_s(parameters * (cast + (2 * reduced if fsdp == 1 else 0)))


def way_of(config: Config, stack: Stack) -> Way:
    """How a config computes products: with the shape of a microbatch all that a block's seconds depend on."""
    float8, mx = config.quantize.dense.float8, config.quantize.dense.mx
    emulated = float8.emulate if float8.enable else mx.emulate or mx.recipe_name == "mxfp8_emulated"
    scaling: Scaling = "tensorwise" if float8.recipe_name == "tensorwise" else "rowwise"
    if mx.enable:
        scaling = "blocks"
    return Way(
        low="float8" if float8.enable or mx.enable else None,
        emulated=emulated,
        high=config.training.mixed_precision_param,
        filters=float8.filter_fqns if float8.enable else mx.filter_fqns,
        gathered_in_float8=float8.enable and float8.enable_fsdp_float8_all_gather,
        seq_len=config.training.seq_len,
        pieces=config.parallelism.tensor_parallel_degree if _splits_products(config, stack) else 1,
        unbalanced=config.parallelism.context_parallel_load_balance == "none",
        scaling="emulated" if emulated else scaling,
    )


def _splits_products(config: Config, stack: Stack) -> bool:
    """Whether communication is inside the products, which are then computed a rank's piece of the tokens at a time.

    torchtitan's compiler pass also finds float8 products, which titan's own fusion does not take. Megatron's pieces
    run on several streams at once, which fill each other's last waves: as one product would.
    """
    parallelism = config.parallelism
    if stack.name == "titan":
        return has_async_tp(config)
    return stack.name != "megatron" and parallelism.enable_async_tensor_parallel and config.compile.enable


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
def _block(work: Work, way: Way, kernels: Kernels, stack: Stack) -> StageCompute:
    """One block without recomputation."""
    tokens, shape = work.tokens, work.shape
    forward = inputs = weights = 0.0
    for name, k, n in _linears(shape, work.tp):
        precision = way.of(name)
        piece = -(-tokens // way.pieces)
        forward += way.pieces * kernels.matmul_s(piece, k, n, precision=precision)
        inputs += way.pieces * kernels.matmul_s(piece, n, k, precision=precision)
        weights += kernels.matmul_s(n, tokens, k, precision=precision)
    casts = _casts(work, way, stack)
    heads = -(-shape.n_heads // work.tp)
    # With head-tail balance queries see half of the sequence on average, without it the last rank's nearly all.
    seen = tokens * (2 - 1 / work.cp) if way.unbalanced else float(tokens)
    if work.cp > 1:
        seen /= stack.context_attention
    forward += kernels.attention_forward_s(seen, way.seq_len, heads, shape.head_dim, precision=way.high)
    inputs += kernels.attention_backward_s(seen, way.seq_len, heads, shape.head_dim, precision=way.high)
    there, back = forward_traffic(work, stack), backward_traffic(work, stack)
    return StageCompute(
        forward_s=max(forward + kernels.elementwise_s(there.bytes + casts[0]), kernels.host_s(there.kernels)),
        input_gradient_s=max(
            inputs
            + kernels.elementwise_s(back.bytes + casts[1])
            + kernels.norm_gradient_s(back.norm_gradient_bytes, finds_largest=way.finds_largest(stack)),
            kernels.host_s(back.kernels),
        ),
        weight_gradient_s=weights + kernels.elementwise_s(casts[2]),
    )


def _casts(work: Work, way: Way, stack: Stack) -> tuple[float, float, float]:
    """Bytes of the casts to low precision: in forward, for the inputs' gradients and for the weights'."""
    forward = inputs = weights = 0.0
    scaling = "delayed" if stack.float8_scales == "delayed" else way.scaling
    cast = partial(cast_bytes, scaling=scaling, compiled=work.compiled)
    # Rowwise, what is multiplied along its other side needs other scales.
    other = 2 if scaling == "rowwise" else 1
    cast_once: set[str] = set()
    for name, k, n in _linears(work.shape, work.tp):
        if not way.is_low(name):
            continue
        module = name.split(".")[-2]
        source = {"wk": "wq", "wv": "wq", "w3": "w1"}.get(module, module)
        # Linears side by side have one input, which the compiler casts once.
        if not (work.compiled and source in cast_once):
            forward += cast(work.tokens, k, layouts=1)
            weights += cast(work.tokens, k, layouts=other)
        cast_once.add(source)
        inputs += cast(work.tokens, n, layouts=2)
        if way.gathered_in_float8:
            inputs += 2 * k * n
        else:
            forward += cast(k, n, layouts=1)
            inputs += cast(k, n, layouts=other)
    return forward, inputs, weights


@cache
def _again_s(work: Work, way: Way, recompute: Recompute, kernels: Kernels, stack: Stack) -> float:
    """Seconds that one recomputed block takes again."""
    moved = kernels.elementwise_s(forward_traffic(work, stack).bytes)
    # The last product is not computed again: nothing of its result is needed.
    name, k, n = next(linear for linear in _linears(work.shape, work.tp) if "w2" in linear[0])
    last = kernels.matmul_s(work.tokens, k, n, precision=way.of(name))
    whole = _block(work, way, kernels, stack).forward_s - last
    match recompute.mode:
        case "none":
            return 0.0
        case "full":
            return whole
        case "memory_budget":
            assert recompute.budget is not None, "a memory budget has a share"
            return float((1 - recompute.budget) ** _BUDGET_CURVE) * whole
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
def _ends(work: Work, way: Way, has_embedding: bool, has_head: bool, kernels: Kernels, stack: Stack) -> StageCompute:
    """Embedding, last norm, head and loss."""
    forward = inputs = weights = 0.0
    shape, tokens, width = work.shape, work.tokens, work.width_bytes
    rows = -(-shape.vocab_size // work.tp)
    if has_embedding:
        forward += kernels.elementwise_s(2 * work.whole_stream_bytes)
        # Zeros for the whole table, and tokens sorted and added up: as long as 35 passes over them take on an H200.
        weights += kernels.elementwise_s(35 * work.whole_stream_bytes + rows * shape.dim * width)
    if has_head:
        precision = way.of("output")
        # In pieces of the sequence each product has fewer rows, or sums over fewer of them.
        chunks = work.loss_chunks
        piece = -(-tokens // chunks)
        forward += chunks * kernels.matmul_s(piece, shape.dim, rows, precision=precision)
        inputs += chunks * kernels.matmul_s(piece, rows, shape.dim, precision=precision)
        weights += chunks * kernels.matmul_s(rows, piece, shape.dim, precision=precision)
        there, back = loss_traffic(work, stack)
        forward += kernels.elementwise_s(there + 2 * work.stream_bytes)
        inputs += kernels.elementwise_s(back) + kernels.norm_gradient_s(5 * work.stream_bytes)
    return StageCompute(forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights)
