"""Rotary positions against complex arithmetic and the published scaling."""

from __future__ import annotations

from dataclasses import replace
from math import pi

import pytest
import torch

from engine.model.rope import frequencies, rotate, table
from engine.shapes import FLAVORS, ModelShape

LLAMA31 = FLAVORS["llama3"]["8B"]
PLAIN = replace(LLAMA31, rope_scaling=None)


def test_frequencies_fall_from_one_to_almost_the_inverse_base() -> None:
    radians = frequencies(PLAIN)
    assert radians[0] == 1.0
    assert radians[-1].item() == pytest.approx(500_000.0 ** -(126 / 128))


def meta_scaled(radian: float) -> float:
    """Meta's `apply_scaling` for one frequency, by its three cases."""
    wavelength = 2 * pi / radian
    if wavelength < 8192 / 4:
        return radian
    if wavelength > 8192 / 1:
        return radian / 8
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * radian / 8 + smooth * radian


def test_scaling_is_that_of_llama_3_1() -> None:
    expected = torch.tensor([meta_scaled(radian) for radian in frequencies(PLAIN).tolist()], dtype=torch.float64)
    torch.testing.assert_close(frequencies(LLAMA31), expected, rtol=1e-12, atol=0)


def test_scaling_has_all_three_cases() -> None:
    ratio = frequencies(LLAMA31) / frequencies(PLAIN)
    assert ratio[0] == 1.0
    assert ratio[-1].item() == pytest.approx(1 / 8)
    assert ((ratio > 0.126) & (ratio < 0.999)).any()


def rotated_by_complex_numbers(x_BSNH: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """The rotation as Meta wrote it, in float64, on halves."""
    left, right = x_BSNH.double().chunk(2, -1)
    positions = torch.arange(x_BSNH.shape[1], dtype=torch.float64)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), torch.outer(positions, frequencies(shape))).unsqueeze(1)
    turned = torch.complex(left, right) * turns
    return torch.cat((turned.real, turned.imag), -1)


def test_real_arithmetic_equals_complex() -> None:
    shape = replace(LLAMA31, head_dim=16)
    x_BSNH = torch.randn(2, 64, 3, 16)
    got = rotate(x_BSNH, *table(shape, 64, torch.device("cpu")))
    torch.testing.assert_close(got, rotated_by_complex_numbers(x_BSNH, shape).float(), rtol=1e-5, atol=1e-5)


def test_far_positions_are_as_exact_as_near_ones() -> None:
    cos_SR, _ = table(PLAIN, 131_072, torch.device("cpu"))
    expected = torch.cos(torch.tensor(131_071.0, dtype=torch.float64) * frequencies(PLAIN))
    torch.testing.assert_close(cos_SR[-1].double(), expected, rtol=0, atol=1e-7)


def test_scores_depend_only_on_distance() -> None:
    shape = replace(LLAMA31, head_dim=16)
    query, key = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    tables = table(shape, 32, torch.device("cpu"))
    queries = rotate(query.float().expand(1, 32, 1, 16), *tables)[0, :, 0]
    keys = rotate(key.float().expand(1, 32, 1, 16), *tables)[0, :, 0]
    scores = queries @ keys.T
    torch.testing.assert_close(scores.diagonal(-7), scores[7, 0].expand(25), rtol=1e-4, atol=1e-4)


def test_the_dtype_is_kept_and_the_arithmetic_is_float32() -> None:
    shape = replace(LLAMA31, head_dim=16)
    x_BSNH = torch.randn(1, 8, 2, 16).bfloat16()
    tables = table(shape, 8, torch.device("cpu"))
    got = rotate(x_BSNH, *tables)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, rotate(x_BSNH.float(), *tables).bfloat16())
