"""Activations that are computed again in backward instead of being kept.

Knows which layers and which operations that is, and that a block computes again with the
attention kernels that it computed with. Does not know bytes (planner/) or what is compiled: it only
must come before that. `torch._functorch.config` stands here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from contextlib import AbstractContextManager
from logging import LogRecord, getLogger
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from engine.model.attention import attention_kernels
from engine.model.linear import Linear
from engine.model.llama import Block, Decoder
from engine.planner.recompute import Recompute

# A product costs K multiplications for each element that it leaves, so all of a block's pay alike. `bmm` is not one of
# them: only attention in plain arithmetic has it, and leaves S x S elements for H multiplications each.
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::_scaled_mm_v2"})
_FUSED_GATHERS = frozenset({"symm_mem::fused_all_gather_matmul", "symm_mem::fused_all_gather_scaled_matmul"})
_FUSED_SCATTERS = frozenset({"symm_mem::fused_matmul_reduce_scatter", "symm_mem::fused_scaled_matmul_reduce_scatter"})
# S multiplications for each element that attention leaves, and more the longer the sequence is.
_ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "aten::_cudnn_attention_forward",
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
        "torch_attn::_varlen_attn",
        "flex_attention",
        "titan::attend_to_all",
        "titan::ring_attention",
    }
)
# What leaves a rank as much as it had, or less. An all-gather is not one of them: it leaves n times as much, and over
# NVLink an element is fetched in half the time that a product of width 4,096 takes to compute one.
_COLLECTIVES = frozenset(
    f"_c10d_functional::{name}"
    for name in (
        "all_reduce",
        "all_reduce_coalesced",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "all_to_all_single",
    )
)
_LINEARS = 7
_DEAR = _PRODUCTS | _FUSED_GATHERS | _FUSED_SCATTERS | _ATTENTION | _COLLECTIVES


def apply_recompute(part: Decoder, recompute: Recompute) -> None:
    """Makes blocks compute again in backward what they do not keep; weights keep their names.

    Under `memory_budget` the compiler decides, so that this must come before compilation, as does
    all else here. The random state is not kept: nothing in a block draws.
    """
    getLogger("torch._higher_order_ops.wrap").addFilter(_is_news)
    # Read at compilation; a build without a budget must not inherit that of one before it.
    functorch_config.activation_memory_budget = 1.0 if recompute.budget is None else recompute.budget
    for layer, block in part.layers.items():
        assert "forward" not in vars(block), "a block computes again before it is compiled"
        linears = sum(isinstance(module, Linear) for module in block.modules())
        assert linears == _LINEARS, f"a block has {linears} linear layers"
        if recompute.repeats(int(layer)):
            block.forward = MethodType(_all_again, block)
        elif recompute.mode == "selective" and recompute.every is None:
            block.forward = MethodType(_cheap_again, block)


def _is_news(record: LogRecord) -> bool:
    """Drops one warning of torch: that a policy is compiled, and that blocks must hold no in-place operation."""
    return "Detected that context_fn is passed" not in record.getMessage()


def _all_again(block: Block, x_BSD: Tensor, *places: Any) -> Tensor:
    """Keeps what goes into the block, and nothing else."""
    return _checkpoint(block, x_BSD, *places)


def _cheap_again(block: Block, x_BSD: Tensor, *places: Any) -> Tensor:
    """Keeps what is dear: products, attention, sums over ranks; computes norms, SwiGLU, rotation and casts again."""
    return _checkpoint(block, x_BSD, *places, context_fn=_keeping_what_is_dear)


def _checkpoint(block: Block, x_BSD: Tensor, *places: Any, **given: Any) -> Tensor:
    def compiled(*args: Any) -> Tensor:
        return Block.forward(block, *args)

    def eager(*args: Any) -> Tensor:
        # Backward runs outside of the Decoder's choice of kernels, and other kernels keep other things.
        with attention_kernels(x_BSD.device.type):
            return Block.forward(block, *args)

    run = compiled if torch.compiler.is_compiling() else eager
    return cast(Tensor, checkpoint(run, x_BSD, *places, use_reentrant=False, preserve_rng_state=False, **given))


def _keeping_what_is_dear() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    contexts = create_selective_checkpoint_contexts(_Policy())  # type: ignore[no-untyped-call]
    return cast(tuple[AbstractContextManager[Any], AbstractContextManager[Any]], contexts)


class _Policy:
    """Says of each operation of a block whether its result is kept.

    What the last product and all after it leave is needed by the next block only, which keeps it
    itself; so the products are counted, in forward and, where torch asks again (2.11), in backward.
    """

    def __init__(self) -> None:
        self._products: Counter[bool] = Counter()

    def __call__(self, context: SelectiveCheckpointContext, operation: Any, *args: Any, **_: Any) -> CheckpointPolicy:
        name = operation.name().partition(".")[0]
        self._products[context.is_recompute] += _products_of(name, args)
        if name in _DEAR and self._products[context.is_recompute] < _LINEARS:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE


def _products_of(name: str, args: tuple[Any, ...]) -> int:
    """How many of the block's products an operation is: a fused gather multiplies by several weights."""
    if name in _FUSED_GATHERS:
        return len(cast(Sized, args[1]))
    return int(name in _PRODUCTS or name in _FUSED_SCATTERS)
