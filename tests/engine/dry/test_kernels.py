"""Norms and attention keep what the kernels of a GPU keep."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.config import Model
from engine.dry.holding import Holding
from engine.dry.kernels import keep_as_a_gpu_does
from engine.model.attention import Attention
from engine.model.linear import Norm
from engine.model.rope import table
from engine.shapes import shape_of


def norm() -> Norm:
    """A norm of width 64, as a GPU has it."""
    made = Norm(64)
    keep_as_a_gpu_does([nn.Sequential(made)])
    return made


def test_norm_keeps_its_input_and_a_number_for_each_row() -> None:
    x = torch.ones(2, 8, 64, dtype=torch.bfloat16, requires_grad=True)
    made = norm().bfloat16()
    with Holding() as held:
        out = made(x)
    # Beside its input: what comes out, in bfloat16, and a float32 for each of 16 rows.
    assert (out.dtype, held.now_bytes) == (torch.bfloat16, 2 * 8 * 64 * 2 + 16 * 4)


def test_norm_gives_gradients_of_the_right_sizes() -> None:
    x, made = torch.ones(2, 8, 64, requires_grad=True), norm()
    made(x).sum().backward()
    assert x.grad is not None
    assert made.weight.grad is not None
    assert (x.grad.shape, made.weight.grad.shape) == (x.shape, made.weight.shape)


def test_input_of_another_width_is_an_error_as_ever() -> None:
    with pytest.raises(AssertionError, match="a norm of width 64 is given width 32"):
        norm()(torch.ones(2, 32))


def held_by_attention(dtype: torch.dtype, *, on_gpu: bool) -> int:
    """Bytes that attention of 8 query and 4 key heads keeps for backward, its weights not counted."""
    shape = shape_of(Model())
    attention = Attention(shape).to(dtype)
    if on_gpu:
        keep_as_a_gpu_does([nn.Sequential(attention)])
    x, places = torch.ones(1, 16, shape.dim, dtype=dtype, requires_grad=True), table(shape, 16, torch.device("cpu"))
    with Holding() as held:
        out = attention(x, *places)
    assert out.requires_grad
    return held.now_bytes


def test_float32_keys_and_values_are_there_for_every_query_head() -> None:
    shape = shape_of(Model())
    repeated = 2 * 16 * (shape.n_heads - shape.n_kv_heads) * shape.head_dim * 4
    # Values are a projection that nobody holds any more once they are repeated, and so are the rotated keys.
    more = held_by_attention(torch.float32, on_gpu=True) - held_by_attention(torch.float32, on_gpu=False)
    assert more == repeated > 0
    assert held_by_attention(torch.bfloat16, on_gpu=True) == held_by_attention(torch.bfloat16, on_gpu=False)
