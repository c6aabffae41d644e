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

# What large products reach of the data sheet: 745 of 989 and 1,488 of 1,979 TFLOP/s on an H200, layer shapes of
# Llama 3 8B; 0.75 is also usual for A100 (cuBLAS, bfloat16, 230 to 245 of 312 TFLOP/s).
_PRODUCT_SHARE = 0.753
# Copies on an H200: 4.26 of 4.8 TB/s.
_HBM_SHARE = 0.89
# Forward and backward of causal attention at 8,192 tokens, heads of 128, as shares of the bfloat16 data sheet: cuDNN
# on Hopper 534 TFLOP/s, FlashAttention 2 on Hopper 283; on A100 about 180 (arXiv 2307.08691, figures 4 to 6).
_CUDNN_SHARE, _FLASH_SHARE, _FLASH_AMPERE_SHARE = 0.54, 0.286, 0.58
# Elementwise kernels against a copy: fused Adam over 4.54 billion weights takes 38 ms on an H200, 3.3 of 4.26 TB/s.
_ELEMENTWISE_SHARE = 0.78
# The compiler's RMSNorm backward sums over tokens for the weight's gradient beside the rows of the input's: one
# kernel of 1.8 ms a layer in a profile of the 8B shape (H200, 8,192 tokens), where a copy of its bytes takes 0.2.
_NORM_GRADIENT_SHARE = 0.25
# Float32 without TF32 on an H100 (data sheet of the SXM card; the H200 is the same chip).
_FP32_SHARE_OF_BF16 = 67.0 / 989.4
# Multiprocessors of a chip, each of which works on one tile of a product at a time.
_MULTIPROCESSORS = {"a100-40": 108, "a100-80": 108, "b200": 148, "gb200": 148, "mi300x": 304}
_HOPPER_MULTIPROCESSORS = 132
# A product's tile, and the depth whose time its prologue and epilogue take.
_TILE_M, _TILE_N, _RAMP_K = 128, 256, 256
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
        arithmetic_s = waves * self.multiprocessors * 2 * _TILE_M * _TILE_N * (k + _RAMP_K) / rate
        width = {"float32": 4, "bfloat16": 2}.get(precision, 1)
        return max(arithmetic_s, self.memory_s((m * k + k * n) * width + 2 * m * n)) + _START_S

    def attention_forward_s(self, tokens: int, seq_len: int, heads: int, head_dim: int) -> float:
        """Seconds of causal attention of `tokens` queries over half of `seq_len` keys: two products."""
        return 2 * tokens * seq_len * heads * head_dim / self.attention_flops_per_s + _START_S

    def attention_backward_s(self, tokens: int, seq_len: int, heads: int, head_dim: int) -> float:
        """Seconds of its backward: five products for forward's two."""
        return 2.5 * self.attention_forward_s(tokens, seq_len, heads, head_dim)

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
            case _:
                # Emulated: the same numbers, multiplied in high precision.
                return self.fp8_flops_per_s or self.bf16_flops_per_s


def kernels_of(cluster: Cluster, stack: Stack) -> Kernels | None:
    """The rates of a cluster's GPU; None where nothing is known of them (a CPU that was not measured)."""
    return _kernels(cluster.gpu, stack)


@cache
def _kernels(gpu: Gpu, stack: Stack) -> Kernels | None:
    bf16, hbm = gpu.bf16_flops_per_s, gpu.hbm_bytes_per_s
    if (gpu.sustained_bf16_flops_per_s or bf16) is None or (gpu.sustained_hbm_bytes_per_s or hbm) is None:
        return None
    products = gpu.sustained_bf16_flops_per_s or _PRODUCT_SHARE * (bf16 or 0.0)
    fp8 = gpu.sustained_fp8_flops_per_s or (gpu.fp8_flops_per_s and _PRODUCT_SHARE * gpu.fp8_flops_per_s)
    share = _CUDNN_SHARE if stack.hopper_attention == "cudnn" else _FLASH_SHARE
    if gpu.name.startswith("a100"):
        share = _FLASH_AMPERE_SHARE
    return Kernels(
        bf16_flops_per_s=products,
        fp8_flops_per_s=fp8,
        fp32_flops_per_s=gpu.fp32_flops_per_s or _FP32_SHARE_OF_BF16 * (bf16 or products),
        attention_flops_per_s=gpu.sustained_attention_flops_per_s or share * (bf16 or products),
        hbm_bytes_per_s=gpu.sustained_hbm_bytes_per_s or _HBM_SHARE * (hbm or 0.0),
        multiprocessors=_MULTIPROCESSORS.get(gpu.name, _HOPPER_MULTIPROCESSORS),
    )
