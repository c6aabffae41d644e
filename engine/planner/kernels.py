"""Seconds of one kernel on one GPU: matrix products, attention, and what only moves bytes.

Knows rates and how size changes them. Does not know which kernels a model runs (compute), nor
collectives (comms). Sustained rates of the hardware table stand before the shares below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from engine.hardware import Cluster, Gpu
from engine.planner.stack import Stack

Precision: TypeAlias = Literal["bfloat16", "float32", "float8", "float8_rowwise", "mxfp8"]

# What products of endless depth reach of the data sheet. Hopper: 745 of 989 and 1,488 of 1,979 TFLOP/s on an H200 with
# the layer shapes of Llama 3 8B, whose ramps below take 3 %. A100: its power suffices for more of its peak.
_PRODUCT_SHARE, _AMPERE_PRODUCT_SHARE = 0.775, 0.85
# Rowwise scales: the kernel adds up in full precision and scales rows and columns itself.
_ROWWISE_SHARE = 0.7
# Copies on an H200: 4.26 of 4.8 TB/s.
_HBM_SHARE = 0.89
# Forward and backward of long causal attention with heads of 128, as shares of the data sheet: cuDNN on Hopper 534
# TFLOP/s at 8,192 tokens, FlashAttention 2 there 283; on A100 about 190 (arXiv 2307.08691, figures 4 to 6), version 1
# half of that and on Hopper no faster than its clock.
_ATTENTION_SHARES = {"cudnn": 0.56, "flash2": 0.30, "flash1": 0.19}
_AMPERE_ATTENTION_SHARES = {"cudnn": 0.63, "flash2": 0.63, "flash1": 0.31}
# Keys at which half of that is reached: short sequences leave multiprocessors idle and diagonals are computed whole.
_HALF_RATE_KEYS = 300
# Elementwise kernels against a copy: fused Adam over 4.54 billion weights takes 38 ms on an H200, 3.3 of 4.26 TB/s.
_ELEMENTWISE_SHARE = 0.78
# The compiler's RMSNorm backward sums over tokens for the weight's gradient beside the rows of the input's: one
# kernel of 1.8 ms a layer in a profile of the 8B shape (H200, 8,192 tokens), where a copy of its bytes takes 0.2.
_NORM_GRADIENT_SHARE = 0.25
# Float32 without TF32 on an H100 (data sheet of the SXM card; the H200 is the same chip), and what of it is sustained:
# 42 TFLOP/s over a whole step on an H200.
_FP32_SHARE_OF_BF16, _FP32_SHARE = 67.0 / 989.4, 0.66
# Multiprocessors of a chip, each of which works on one tile of a product at a time.
_MULTIPROCESSORS = {"a100-40": 108, "a100-80": 108, "b200": 148, "gb200": 148, "mi300x": 304}
_HOPPER_MULTIPROCESSORS = 132
# A product's tile, and the time in which a multiprocessor fetches the first and writes the last of one.
_TILE_M, _TILE_N, _RAMP_S = 128, 256, 1.0e-6
# A kernel's start on the GPU behind another one.
_START_S = 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Sustained rates of one GPU under one implementation; float8 is None where the hardware has none."""

    bf16_flops_per_s: float
    fp8_flops_per_s: float | None
    fp32_flops_per_s: float
    attention_flops_per_s: float
    hbm_bytes_per_s: float
    multiprocessors: int
    launch_s: float = 7e-6

    def matmul_s(self, m: int, k: int, n: int, *, precision: Precision = "bfloat16") -> float:
        """Seconds of (m, k) times (k, n): 2 m k n FLOPs at the rate of whole waves of tiles, or its bytes."""
        rate = self._rate(precision)
        tiles = -(-m // _TILE_M) * -(-n // _TILE_N)
        waves = max(1.0, tiles / self.multiprocessors)
        tile_s = self.multiprocessors * 2 * _TILE_M * _TILE_N * k / rate
        arithmetic_s = waves * (tile_s + _RAMP_S)
        width = {"float32": 4, "bfloat16": 2}.get(precision, 1)
        return max(arithmetic_s, self.memory_s((m * k + k * n) * width + 2 * m * n)) + _START_S

    def attention_forward_s(
        self, tokens: float, seq_len: int, heads: int, head_dim: int, *, precision: Precision = "bfloat16"
    ) -> float:
        """Seconds of causal attention of `tokens` queries over half of `seq_len` keys: two products."""
        # In float32 the memory-efficient kernel has no tensor cores.
        full = self.fp32_flops_per_s if precision == "float32" else self.attention_flops_per_s
        rate = full * seq_len / (seq_len + _HALF_RATE_KEYS)
        return 2 * tokens * seq_len * heads * head_dim / rate + _START_S

    def attention_backward_s(
        self, tokens: float, seq_len: int, heads: int, head_dim: int, *, precision: Precision = "bfloat16"
    ) -> float:
        """Seconds of its backward: five products for forward's two."""
        return 2.5 * self.attention_forward_s(tokens, seq_len, heads, head_dim, precision=precision)

    def elementwise_s(self, bytes_moved: float) -> float:
        """Seconds of elementwise kernels and small reductions, which reach less than a plain copy."""
        return bytes_moved / (_ELEMENTWISE_SHARE * self.hbm_bytes_per_s)

    def norm_gradient_s(self, bytes_moved: float) -> float:
        """Seconds of the compiler's backward of a norm."""
        return bytes_moved / (_NORM_GRADIENT_SHARE * self.hbm_bytes_per_s)

    def host_s(self, kernels: int) -> float:
        """Seconds that the CPU takes to start so many kernels: no step is shorter."""
        return kernels * self.launch_s

    def memory_s(self, bytes_moved: float) -> float:
        """Seconds of reading and writing so many bytes of the GPU's own memory."""
        return bytes_moved / self.hbm_bytes_per_s

    def _rate(self, precision: Precision) -> float:
        match precision:
            case "float32":
                return self.fp32_flops_per_s
            case "bfloat16":
                return self.bf16_flops_per_s
            case "float8_rowwise":
                return _ROWWISE_SHARE * self.fp8_flops_per_s if self.fp8_flops_per_s else self.bf16_flops_per_s
            case _:
                # Emulated: the same numbers, multiplied in high precision.
                return self.fp8_flops_per_s or self.bf16_flops_per_s


def kernels_of(cluster: Cluster, stack: Stack) -> Kernels | None:
    """The rates of a cluster's GPU; None where nothing is known of them (a CPU that was not measured)."""
    return _kernels(cluster.gpu, stack)


@cache
def _kernels(gpu: Gpu, stack: Stack) -> Kernels | None:
    bf16 = gpu.bf16_flops_per_s or gpu.sustained_bf16_flops_per_s
    hbm = gpu.sustained_hbm_bytes_per_s or (gpu.hbm_bytes_per_s and _HBM_SHARE * gpu.hbm_bytes_per_s)
    if bf16 is None or hbm is None:
        return None
    is_ampere = gpu.name.startswith("a100")
    share = _AMPERE_PRODUCT_SHARE if is_ampere else _PRODUCT_SHARE
    products = gpu.sustained_bf16_flops_per_s or share * bf16
    shares = _AMPERE_ATTENTION_SHARES if is_ampere else _ATTENTION_SHARES
    # A card that sustains less than others of its kind is slower in attention too. Measured is the best kernel.
    best = gpu.sustained_attention_flops_per_s or shares["cudnn"] * products / share
    factor = 1.0 if is_ampere else stack.hopper_products
    fp8 = gpu.sustained_fp8_flops_per_s or (gpu.fp8_flops_per_s and share * gpu.fp8_flops_per_s)
    return Kernels(
        bf16_flops_per_s=factor * products,
        fp8_flops_per_s=fp8 and factor * fp8,
        fp32_flops_per_s=_FP32_SHARE * (gpu.fp32_flops_per_s or _FP32_SHARE_OF_BF16 * bf16),
        attention_flops_per_s=best * shares[stack.attention] / shares["cudnn"],
        hbm_bytes_per_s=hbm,
        multiprocessors=_MULTIPROCESSORS.get(gpu.name, _HOPPER_MULTIPROCESSORS),
    )
