"""What Megatron-LM 0.14 with Transformer Engine allocates on one rank.

Knows its distributed optimizer, what Transformer Engine's modules keep for backward, and the vocabulary-parallel
cross entropy. Does not know experts, offloading, nor holes in the allocator's pool: `reserved_bytes` is the peak of
what is allocated.

Every rank has whole weights in the precision of compute and whole gradients in float32; float32 weights and both
moments are shared out over all data and context ranks (ZeRO-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.config import Config
from engine.planner.activations import FLOAT32, Work
from engine.planner.memory import OPTIMIZER_STATES, Memory
from engine.planner.mesh import Mesh
from engine.planner.recompute import Recompute
from engine.planner.sharding import Groups
from engine.shapes import block_parameters

# A block's weights once more where products are in float8: as they are and transposed, kept over microbatches.
_FLOAT8_WEIGHTS_WIDTH = 2


def megatron_memory(
    static: Memory,
    *,
    config: Config,
    mesh: Mesh,
    work: Work,
    recompute: Recompute,
    groups: Groups,
    parts: Sequence[tuple[tuple[int, ...], int]],
    has_loss: bool,
) -> Memory:
    """A rank by its fullest moment; of `static` only the capacity is used.

    `parts` are the layers of each of its stages and the microbatches in flight there.
    """
    width = work.width_bytes
    params = groups.total * width
    if _is_float8(config):
        params += groups.blocks * groups.block * _FLOAT8_WEIGHTS_WIDTH
    grads = groups.total * FLOAT32 + _unused_gradients_bytes(work, groups)
    copies = OPTIMIZER_STATES[config.optimizer.name] + (1 if width < FLOAT32 else 0)
    optimizer = -(-groups.total // (mesh.data_ranks * mesh.cp)) * copies * FLOAT32
    kept = sum(held * len(layers) * _kept_bytes(work, recompute, config) for layers, held in parts)
    again = _block_bytes(work, config) - _kept_bytes(work, recompute, config)
    moments = {"backward of a block": kept + again + _backward_bytes(work)}
    logits = 0
    if has_loss:
        kept += parts[-1][1] * 2 * work.stream_bytes
        elements = work.tokens * -(-work.shape.vocab_size // work.tp)
        # And one float32 copy, in which the cross entropy does all else in place, up to its own gradient
        # (megatron/core/tensor_parallel/cross_entropy.py).
        logits = elements * (width + FLOAT32)
        moments["loss"] = kept + logits
        # The head's input is gathered again, beside the input's gradient.
        streams = (2 if work.tp > 1 else 1) * work.whole_stream_bytes
        moments["gradient of the head"] = kept + elements * width + streams
    moment = max(moments, key=moments.__getitem__)
    peak = params + grads + optimizer + moments[moment]
    return replace(
        static,
        params_bytes=params,
        grads_bytes=grads,
        optimizer_bytes=optimizer,
        activations_bytes=kept + again + _backward_bytes(work),
        logits_bytes=logits,
        communication_bytes=0,
        peak_bytes=peak,
        reserved_bytes=peak,
        moment=moment,
        fits=peak <= static.capacity_bytes,
    )


def _block_bytes(work: Work, config: Config) -> int:
    """What Transformer Engine's modules keep of a block.

    LayerNormLinear: the stream, and the norm's result, which with sequence parallel is gathered again in backward;
    attention: query, keys, values and its output, which is the input of the projection too; LayerNormMLP
    or its parts: the stream, the norm's result, both hidden halves and their product. Inputs of float8 products are
    kept in float8 instead.
    """
    inputs = 2 * work.stream_bytes + work.hidden_bytes
    if _is_float8(config):
        inputs //= work.width_bytes
    attention = 2 * work.query_bytes + 2 * work.key_bytes
    numbers = work.tokens * (-(-work.shape.n_heads // work.tp) + -(-2 // work.tp)) * FLOAT32
    return 2 * work.stream_bytes + inputs + attention + 2 * work.hidden_bytes + numbers


def _kept_bytes(work: Work, recompute: Recompute, config: Config) -> int:
    """What one microbatch leaves of a block: all, or under full recomputation its input.

    Megatron's selective recomputation repeats the core of attention, which a fused kernel keeps nothing of.
    """
    return work.stream_bytes if recompute.mode == "full" else _block_bytes(work, config)


def _backward_bytes(work: Work) -> int:
    """Gradients in the feed-forward, where they are widest: of its product, of both halves, of the gathered input."""
    return 3 * work.hidden_bytes + 2 * work.whole_stream_bytes


def _unused_gradients_bytes(work: Work, groups: Groups) -> int:
    """Tensors in place of weight gradients that products have added up already, one for each shape of a weight.

    Transformer Engine keeps them for good (`get_dummy_wgrad`, which megatron/core/tensor_parallel/layers.py asks too):
    for query, keys and values at once, for the projection, for both hidden halves at once, for what leads
    back, and for the head.
    """
    matrices = sum(weight.numel for weight in block_parameters(work.shape).values() if len(weight.shape) > 1)
    return (-(-matrices // work.tp) + groups.head) * work.width_bytes


def _is_float8(config: Config) -> bool:
    return config.quantize.dense.float8.enable or config.quantize.dense.mx.enable
