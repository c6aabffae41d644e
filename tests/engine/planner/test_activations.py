"""Bytes kept for backward, held against what autograd keeps of the real model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from watching import Watching

from engine.config import Model
from engine.model.linear import Linear
from engine.model.llama import Block, Decoder
from engine.model.loss import cross_entropy_sum
from engine.model.rope import table
from engine.parallel.recompute import apply_recompute
from engine.planner.activations import (
    Work,
    block_bytes,
    kept_bytes,
    logits,
    selective_bytes,
)
from engine.planner.recompute import Recompute
from engine.shapes import FLAVORS, ModelShape, shape_of

GIB = 1 << 30
BATCH, SEQUENCE = 2, 64
SHAPE = shape_of(Model())


def work(shape: ModelShape = SHAPE, **more: Any) -> Work:
    """A microbatch on one CPU process, in float32."""
    values = {"tokens": BATCH * SEQUENCE, "width_bytes": 4, "fused_norm": False}
    return Work(shape=shape, **(values | more))


def kept_by_autograd(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes that the forward of a real block leaves for its backward, each storage once, without weights and tables."""
    block = Block(shape).to(dtype)
    cos, sin = table(shape, SEQUENCE, torch.device("cpu"))
    own = {tensor.untyped_storage().data_ptr() for tensor in (*block.parameters(), cos, sin)}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    x_BSD = torch.randn(BATCH, SEQUENCE, shape.dim, dtype=dtype, requires_grad=True)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x_BSD, cos, sin)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flavor", ["llama3", "qwen3"])
def test_a_block_keeps_what_autograd_keeps_to_the_byte(flavor: str, dtype: torch.dtype) -> None:
    shape = FLAVORS[flavor]["debugmodel"]
    assert block_bytes(work(shape, width_bytes=dtype.itemsize)) == kept_by_autograd(shape, dtype)


def held_after_forward(recompute: Recompute, layers: int) -> int:
    """Bytes that live after the forward of a real decoder's blocks and were not there before it.

    The watcher sees the weights too, through their transposes.
    """
    shape = replace(SHAPE, n_layers=layers)
    part = Decoder(shape, tuple(range(layers)), first=False, last=False, seq_len=SEQUENCE)
    part.rebuild(torch.device("cpu"))
    apply_recompute(part, recompute)
    x_BSD = torch.randn(BATCH, SEQUENCE, shape.dim, requires_grad=True)
    with Watching() as seen:
        out_BSD = part(x_BSD)
        live = seen.live_bytes()
    assert out_BSD.requires_grad
    return live - sum(weight.nbytes for weight in part.parameters() if weight.ndim == 2)


@pytest.mark.parametrize(
    "recompute",
    [
        Recompute(),
        Recompute(mode="selective"),
        Recompute(mode="selective", every=2),
        Recompute(mode="full"),
    ],
    ids=lambda recompute: f"{recompute.mode}-{recompute.every}",
)
def test_every_mode_keeps_for_two_more_layers_what_they_cost(recompute: Recompute) -> None:
    found = held_after_forward(recompute, 4) - held_after_forward(recompute, 2)
    assert kept_bytes(work(), recompute, (2, 3)) == pytest.approx(found, rel=0.001)


def test_selective_keeps_all_products_but_the_last() -> None:
    shape, tokens = SHAPE, BATCH * SEQUENCE
    heads, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    elements = 2 * shape.dim + 2 * heads + 2 * keys + 2 * shape.ffn_dim
    assert selective_bytes(work()) == tokens * 4 * (elements + shape.n_heads)
    assert sum(isinstance(module, Linear) for module in Block(shape).modules()) == 7


def test_modes_keep_less_and_less() -> None:
    modes = (Recompute(), Recompute(mode="selective"), Recompute(mode="full"))
    kept = [kept_bytes(work(), mode, range(4)) for mode in modes]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize(("every", "dropped"), [(1, 6), (2, 3), (4, 1), (6, 1)])
def test_every_nth_layer_keeps_only_its_input(every: int, dropped: int) -> None:
    one, many = work(), Recompute(mode="selective", every=every)
    expected = dropped * one.stream_bytes + (6 - dropped) * block_bytes(one)
    assert kept_bytes(one, many, range(6)) == expected


@pytest.mark.parametrize(("budget", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_a_memory_budget_is_a_share_of_what_the_compiler_may_drop(budget: float, share: float) -> None:
    one = work(compiled=True)
    full, none = one.stream_bytes, block_bytes(one)
    kept = kept_bytes(one, Recompute(mode="memory_budget", budget=budget), (0,))
    assert kept == pytest.approx(full + share * (none - full), abs=1)


def test_a_compiled_block_does_not_keep_the_output_of_silu() -> None:
    assert block_bytes(work()) - block_bytes(work(compiled=True)) == work().hidden_bytes


def test_a_compiled_float8_block_keeps_neither_the_results_of_norms_nor_the_input_of_w2() -> None:
    low, high = work(compiled=True, float8="weight_gradients_low"), work(compiled=True)
    assert block_bytes(high) - block_bytes(low) == 2 * high.whole_stream_bytes + high.hidden_bytes


def test_async_tensor_ranks_keep_their_piece_of_what_they_gather() -> None:
    one, other = work(tp=2), work(tp=2, async_tp=True)
    assert block_bytes(one) - block_bytes(other) == 2 * (one.whole_stream_bytes - one.stream_bytes)


def test_float32_keys_are_repeated_for_every_query_head_on_a_gpu() -> None:
    one = work(fused_norm=True)
    assert one.attended_key_bytes == one.query_bytes > work().attended_key_bytes


def test_tensor_ranks_share_all_but_the_gathered_inputs_of_the_linear_layers() -> None:
    whole, half = (work(fused_norm=True, width_bytes=2, tp=tp) for tp in (1, 2))
    gathered = 2 * whole.whole_stream_bytes
    assert 2 * (block_bytes(half) - gathered) == block_bytes(whole) - gathered


def test_context_ranks_that_gather_keys_keep_those_of_all_tokens() -> None:
    ring, gather = (work(cp=4, cp_method=method) for method in ("ring", "allgather"))
    assert block_bytes(gather) - block_bytes(ring) == 2 * 3 * ring.key_bytes


@pytest.mark.parametrize(("kv_heads", "cp", "times"), [(2, 4, 2), (8, 4, 1), (8, 3, 3), (1, 8, 8)])
def test_ulysses_repeats_heads_that_ranks_cannot_share(kv_heads: int, cp: int, times: int) -> None:
    few = work(replace(SHAPE, n_kv_heads=kv_heads), cp=cp, cp_method="ulysses")
    assert few.attended_key_bytes == times * few.key_bytes


def watched_loss(**more: Any) -> int:
    """Peak bytes of the real cross entropy, forward and backward, beside the logits that it is given.

    The engine drops those when the loss is computed.
    """
    logits_BSV = torch.randn(BATCH, SEQUENCE, SHAPE.vocab_size, requires_grad=True, **more)
    labels_BS = torch.randint(0, SHAPE.vocab_size, (BATCH, SEQUENCE))
    with Watching() as seen:
        cross_entropy_sum(logits_BSV, labels_BS).backward()
    return seen.peak_bytes - logits_BSV.nbytes


def test_an_eager_loss_holds_three_float32_copies_of_the_logits() -> None:
    assert logits(work()).peak_bytes == pytest.approx(watched_loss(), rel=0.01)
    assert logits(work(width_bytes=2)).peak_bytes == pytest.approx(watched_loss(dtype=torch.bfloat16), rel=0.01)


def test_c48_logits_of_8192_tokens_and_151936_words() -> None:
    shape = FLAVORS["qwen3"]["8B"]
    one = work(shape, tokens=8192, width_bytes=2, compiled_loss=True)
    quarter = logits(replace(one, tp=4)).kept_bytes
    assert (round(logits(one).kept_bytes / GIB, 2), round(quarter / GIB, 2)) == (2.32, 0.58)
