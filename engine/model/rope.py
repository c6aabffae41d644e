"""Rotary position embedding in real arithmetic.

Knows frequencies (Llama 3.1's stretching included), their table and the rotation. The compiler
cannot generate code for complex numbers, hence sine and cosine. A head's width is kept in
halves, as Hugging Face weights are: element i turns together with element i + H / 2 (Meta's
own files interleave them). R is H / 2.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from engine.shapes import ModelShape, RopeScaling


def frequencies(shape: ModelShape) -> Tensor:
    """Radians a position of each of the R pairs, in float64; RoFormer (arXiv 2104.09864), equation 15."""
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu")
    radians_R = shape.rope_theta ** -(pairs / shape.head_dim)
    return radians_R if shape.rope_scaling is None else _stretched(radians_R, shape.rope_scaling)


def _stretched(radians_R: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling: long waves are slowed by `factor`, short ones kept, those between are blended."""
    waves = scaling.original_seq_len * radians_R / (2 * pi)  # turns within the original context
    share_kept = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share_kept = share_kept.clamp(0.0, 1.0)
    return radians_R * (share_kept + (1.0 - share_kept) / scaling.factor)


def table(shape: ModelShape, seq_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position and pair, (S, R) in float32; the angles are computed in float64."""
    positions_S = torch.arange(seq_len, dtype=torch.float64, device="cpu")
    angles_SR = torch.outer(positions_S, frequencies(shape))
    return angles_SR.cos().float().to(device), angles_SR.sin().float().to(device)


def rotate(x_BSNH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns every head by its position's angles, in float32; returns the dtype it was given.

    The tables are (S, R), or (B, S, R) where sequences have positions of their own.
    """
    cos_SNR, sin_SNR = cos.unsqueeze(-2), sin.unsqueeze(-2)
    left, right = x_BSNH.float().chunk(2, dim=-1)
    turned_BSNH = torch.cat((left * cos_SNR - right * sin_SNR, right * cos_SNR + left * sin_SNR), dim=-1)
    return turned_BSNH.to(x_BSNH.dtype)
