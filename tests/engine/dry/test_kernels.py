"""Norms keep what the kernel of a GPU keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.dry.holding import Holding
from engine.dry.kernels import keep_as_a_gpu_does
from engine.model.linear import Norm


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
