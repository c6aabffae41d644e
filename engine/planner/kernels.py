"""Seconds of one kernel on one GPU: matrix products, attention, and what only moves bytes.

Knows rates and how size changes them. Does not know which kernels a model runs (compute), nor
collectives (comms). Sustained rates of the hardware table or of a calibration stand before the shares below.

Where nothing else is said the constants are those of an H200 (torch 2.11, CUDA 13): tests/bench/kernels_h200.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from engine.hardware import Cluster, Gpu
from engine.planner.stack import Stack

Precision: TypeAlias = Literal["bfloat16", "float32", "float8"]
"""Of a product's factors. Scales of float8 hardly change its rate: 1,260 TFLOP/s with one a tensor, 1,290 one a row."""
Attention: TypeAlias = Literal["cudnn", "flash2", "flash1", "apart"]
"""Fused, or products and softmax apart, with the whole square of scores in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What a kind of chip reaches of its data sheet.

    `products` in matrix products of endless depth, `attention` in long causal attention with heads of 128, forward
    and backward, `multiprocessors` that each work on one tile at a time.
    """

    products: float
    attention: dict[Attention, tuple[float, float]]
    multiprocessors: int


# Products of random numbers in a row: 675 of 989 TFLOP/s in bfloat16 and 1,260 of 1,979 in float8, limited by power. In
# training, where other kernels leave the chip to cool: 8 and 16 layers of the 8B shape reach 4 % more.
# FlashAttention 1 is what runs of llm-foundry show at 32,768 and 65,536 tokens: 175 to 185 TFLOP/s.
_HOPPER = Chip(
    products=0.735,
    attention={"cudnn": (0.65, 0.56), "flash2": (0.34, 0.32), "flash1": (0.19, 0.19)},
    multiprocessors=132,
)
# The same chip at 500 instead of 700 W, of which some 150 are memory and leakage: a clock goes with a little less than
# the square root of the rest, 0.82 (torchtitan's rows on such cards, 22 of them, lie around it).
_HOPPER_500_W = replace(
    _HOPPER,
    products=0.82 * _HOPPER.products,
    attention={name: (0.82 * forward, 0.82 * backward) for name, (forward, backward) in _HOPPER.attention.items()},
)
# FlashAttention 2: arXiv 2307.08691, figures 4 to 6; version 1 half of that. Apart: kernels for scores, softmax,
# dropout and values move 13 bytes for each score in forward and 19 in backward, at 1.8 TB/s, beside products over
# the whole square with a depth of 128 at 130 TFLOP/s: 23 and 34 TFLOP/s of causal attention. Products: 250 of
# 312 TFLOP/s, by the runs of llm-foundry and torchtitan on one node.
_AMPERE = Chip(
    products=0.80,
    attention={"cudnn": (0.66, 0.62), "flash2": (0.66, 0.62), "flash1": (0.31, 0.31), "apart": (0.073, 0.11)},
    multiprocessors=108,
)
# Not measured here: a little less than Hopper's share of products, by runs on GB200 (torchtitan nvfp4.md, and NVIDIA's
# published tables); FlashAttention 2 has no instructions of Blackwell.
_BLACKWELL = Chip(
    products=0.68,
    attention={"cudnn": (0.56, 0.45), "flash2": (0.17, 0.16), "flash1": (0.1, 0.1)},
    multiprocessors=148,
)
# 620 of 1,307 TFLOP/s in bfloat16 (SemiAnalysis, "MI300X vs H100 vs H200", December 2024).
_CDNA = Chip(
    products=0.48,
    attention={"cudnn": (0.3, 0.22), "flash2": (0.3, 0.22), "flash1": (0.1, 0.1)},
    multiprocessors=304,
)
# Of a processor only what was measured is known; the shares of attention are those of one matrix product after another.
_PROCESSOR = Chip(
    products=1.0, attention={"cudnn": (0.5, 0.4), "flash2": (0.5, 0.4), "flash1": (0.5, 0.4)}, multiprocessors=1
)
_CHIPS = {
    "cpu": _PROCESSOR,
    "h100-95": _HOPPER_500_W,
    "h100-96": _HOPPER_500_W,
    "a100-40": _AMPERE,
    "a100-80": _AMPERE,
    "b200": _BLACKWELL,
    "gb200": _BLACKWELL,
    "mi300x": _CDNA,
}

# Float8 against bfloat16: 1,260 of 1,979 where bfloat16 reaches 675 of 989, by power again.
_FP8_SHARE = 0.95
# A calibration measures in a row: a product of 8,192 cubed, whose ramps and last wave take 5 %, at the power limit,
# which takes another 5 % in bfloat16; and attention of 8,192 tokens with 32 heads, a little short of the longest.
_BEYOND_A_CUBE, _BEYOND_A_FLOAT8_CUBE, _BEYOND_8192_TOKENS = 1.10, 1.08, 1.14
# Tiles that products are cut into, and what the smaller ones reach of the largest one's rate.
_TILES = ((128, 256, 1.0), (128, 128, 0.93), (64, 128, 0.8), (64, 64, 0.6))
# What a multiprocessor needs to fetch the first and write the last of one tile, and a kernel to start behind another.
_RAMP_S, _START_S = 2e-6, 3e-6
# Float32 without TF32: 67 TFLOP/s on the data sheet of an H100 SXM, of which products reach 50. Attention in
# float32 has no tensor cores either: what 8 layers of the 8B shape leave for it in 2.64 s.
_FP32_SHARE_OF_BF16, _FP32_SHARE, _FP32_ATTENTION_SHARE = 67.0 / 989.4, 0.75, 0.65
# Copies: 4.27 of 4.8 TB/s. Elementwise kernels, eager or compiled, come to 4.0 to 4.3; kernels that walk lists of
# tensors (fused Adam, norms of all gradients) to 3.3 to 3.4. An update in a kernel of our own (adam_kernel) and norms
# of gradients in 16 bits are taken to be as fast: neither is measured.
_HBM_SHARE, _ELEMENTWISE_SHARE, _LIST_SHARE = 0.89, 0.96, 0.79
# The compiler's backward of a norm sums over tokens for the weight's gradient beside the rows of the input's: 1.2 TB/s
# at 8,192 tokens to 2.9 at 32,768. Where it also finds the largest element of a tensor for float8, one kernel took
# 1.8 ms a layer in a profile of the 8B shape with 8,192 tokens: it waits for itself, not for memory, and takes no
# longer for 16,384 or 32,768 (four runs on an H200 were predicted 4 to 6 % slow while it did).
_NORM_GRADIENT_SHARE, _WITH_LARGEST_BYTES_PER_S, _WITH_LARGEST_S = 0.5, 0.37e12, 1.8e-3
# Causal attention: keys at which the blocks on the diagonal, computed whole, cost as much as the rest, in forward and
# in backward; and query heads times tokens at which multiprocessors without work do.
_DIAGONAL_KEYS, _IDLE_ROWS = (300, 700), 26_000
# Heads of 64 leave tensor cores waiting for the exponentials, of which there are as many: what they reach.
# Apart, the bytes of the scores stay and only the products become half as deep.
_NARROW_HEAD_SHARE: dict[Attention, float] = {"cudnn": 0.75, "flash2": 0.9, "flash1": 0.9, "apart": 0.6}
# From the CPU, with what autograd and modules need around it: an eager block of the 8B shape starts 40 kernels in
# 0.57 ms when the GPU has nothing to do.
_LAUNCH_S = 14e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Sustained rates of one GPU under one implementation; float8 is None where the hardware has none."""

    bf16_flops_per_s: float
    fp8_flops_per_s: float | None
    fp32_flops_per_s: float
    attention: Attention
    attention_forward_flops_per_s: float
    attention_backward_flops_per_s: float
    hbm_bytes_per_s: float
    multiprocessors: int

    def matmul_s(self, m: int, k: int, n: int, *, precision: Precision = "bfloat16") -> float:
        """Seconds of (m, k) times (k, n), with the tile that is best for it, in whole waves over the chip.

        Never less than its bytes take.
        """
        flops_per_s = self._rate(precision) / self.multiprocessors
        width = {"float32": 4, "bfloat16": 2}.get(precision, 1)
        arithmetic_s = min(
            -(-(-(-m // rows) * -(-n // columns)) // self.multiprocessors)
            * (2 * rows * columns * k / (flops_per_s * share) + _RAMP_S)
            for rows, columns, share in _TILES
        )
        return max(arithmetic_s, self.memory_s((m * k + k * n) * width + 2 * m * n)) + _START_S

    def attention_forward_s(
        self, tokens: float, seq_len: int, heads: int, head_dim: int, *, precision: Precision = "bfloat16"
    ) -> float:
        """Seconds of causal attention of `tokens` queries over half of `seq_len` keys on average: two products."""
        flops = 2 * tokens * seq_len * heads * head_dim
        return self._attention_s(flops, tokens * heads, seq_len, head_dim, precision=precision, backward=False)

    def attention_backward_s(
        self, tokens: float, seq_len: int, heads: int, head_dim: int, *, precision: Precision = "bfloat16"
    ) -> float:
        """Seconds of its backward: five products for forward's two."""
        flops = 5 * tokens * seq_len * heads * head_dim
        return self._attention_s(flops, tokens * heads, seq_len, head_dim, precision=precision, backward=True)

    def _attention_s(
        self, flops: float, rows: float, seq_len: int, head_dim: int, *, precision: Precision, backward: bool
    ) -> float:
        rate = self.attention_backward_flops_per_s if backward else self.attention_forward_flops_per_s
        if precision == "float32":
            rate = _FP32_ATTENTION_SHARE / _FP32_SHARE * self.fp32_flops_per_s
        elif head_dim < 128:
            narrow = _NARROW_HEAD_SHARE[self.attention]
            rate *= narrow + (1 - narrow) * max(0.0, head_dim - 64) / 64
        if self.attention == "apart":
            return flops / rate + 6 * _START_S
        loss = _DIAGONAL_KEYS[backward] / seq_len + float((_IDLE_ROWS / rows) ** 1.2)
        return flops * (1 + loss) / rate + _START_S

    def memory_s(self, bytes_moved: float) -> float:
        """Seconds of copying: so many bytes read and written of the GPU's own memory."""
        return bytes_moved / self.hbm_bytes_per_s

    def elementwise_s(self, bytes_moved: float) -> float:
        """Seconds of elementwise kernels."""
        return bytes_moved / (_ELEMENTWISE_SHARE * self.hbm_bytes_per_s)

    def lists_s(self, bytes_moved: float) -> float:
        """Seconds of kernels that walk lists of tensors: the update, norms of gradients."""
        return bytes_moved / (_LIST_SHARE * self.hbm_bytes_per_s)

    def norm_gradient_s(self, bytes_moved: float, *, finds_largest: bool = False) -> float:
        """Seconds of the compiler's backward of a norm; `finds_largest` for the scale of a float8 tensor beside it."""
        moving_s = bytes_moved / (_NORM_GRADIENT_SHARE * self.hbm_bytes_per_s)
        if not finds_largest:
            return moving_s
        return max(moving_s, min(bytes_moved / _WITH_LARGEST_BYTES_PER_S, _WITH_LARGEST_S))

    def host_s(self, kernels: int) -> float:
        """Seconds that the CPU takes to start so many kernels: no step is shorter."""
        return kernels * _LAUNCH_S

    def _rate(self, precision: Precision) -> float:
        match precision:
            case "float32":
                return self.fp32_flops_per_s
            case "bfloat16":
                return self.bf16_flops_per_s
            case _:
                # Without float8 units there is only emulation: the same numbers, multiplied in high precision.
                return self.fp8_flops_per_s or self.bf16_flops_per_s


def kernels_of(cluster: Cluster, stack: Stack) -> Kernels | None:
    """The rates of a cluster's GPU; None where nothing is known of them (a CPU that was not measured)."""
    return _kernels(cluster.gpu, stack)


@cache
def _kernels(gpu: Gpu, stack: Stack) -> Kernels | None:
    bf16 = gpu.bf16_flops_per_s or gpu.sustained_bf16_flops_per_s or gpu.sustained_fp32_flops_per_s
    hbm = gpu.sustained_hbm_bytes_per_s or (gpu.hbm_bytes_per_s and _HBM_SHARE * gpu.hbm_bytes_per_s)
    if bf16 is None or hbm is None:
        return None
    chip = _CHIPS.get(gpu.name, _HOPPER)
    products, fp8 = chip.products * bf16, gpu.fp8_flops_per_s and _FP8_SHARE * chip.products * gpu.fp8_flops_per_s
    if gpu.sustained_bf16_flops_per_s is not None:
        products = _BEYOND_A_CUBE * gpu.sustained_bf16_flops_per_s
    if gpu.sustained_fp8_flops_per_s is not None:
        fp8 = _BEYOND_A_FLOAT8_CUBE * gpu.sustained_fp8_flops_per_s
    fp32 = gpu.sustained_fp32_flops_per_s or _FP32_SHARE * (gpu.fp32_flops_per_s or _FP32_SHARE_OF_BF16 * bf16)
    # CUDA 11 ran Ampere's kernels on Hopper.
    factor = stack.hopper_products if chip in (_HOPPER, _HOPPER_500_W) else 1.0
    forward, backward = _attention_rates(gpu, chip, stack, products=products)
    return Kernels(
        bf16_flops_per_s=factor * products,
        fp8_flops_per_s=fp8 and factor * fp8,
        fp32_flops_per_s=fp32,
        attention=_attention_of(chip, stack),
        attention_forward_flops_per_s=forward,
        attention_backward_flops_per_s=backward,
        hbm_bytes_per_s=hbm,
        multiprocessors=chip.multiprocessors,
    )


def _attention_of(chip: Chip, stack: Stack) -> Attention:
    return stack.ampere_attention or stack.attention if chip == _AMPERE else stack.attention


def _attention_rates(gpu: Gpu, chip: Chip, stack: Stack, *, products: float) -> tuple[float, float]:
    """FLOP/s of long attention forward and backward.

    A card that sustains less than its kind does is slower in attention too. Where attention was measured, that is the
    best kernel's rate over forward and backward, and the others keep their distance from it.
    """
    forward, backward = chip.attention[_attention_of(chip, stack)]
    scale = products / chip.products
    if gpu.sustained_attention_flops_per_s is not None:
        best_forward, best_backward = chip.attention["cudnn"]
        scale = _BEYOND_8192_TOKENS * gpu.sustained_attention_flops_per_s * (2 / best_forward + 5 / best_backward) / 7
    return scale * forward, scale * backward
