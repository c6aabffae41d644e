"""Products, as rows with what they multiplied and how long that took: bfloat16, float32 and float8, with its casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from clocked import Bench, Row, both, layers
from torch import Tensor


def products(b: Bench) -> Iterator[Row]:
    """bfloat16 products of a linear layer: output, gradient of the input, gradient of the weight."""
    for k, n in layers(b.small):
        weight_NK = b.random(n, k)
        for tokens in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
            x_MK, g_MN = b.random(tokens // b.small, k), b.random(tokens // b.small, n)
            yield from _three_ways(b, x_MK, g_MN, weight_NK, precision="bf16")


def _three_ways(b: Bench, x_MK: Tensor, g_MN: Tensor, weight_NK: Tensor, *, precision: str) -> Iterator[Row]:
    (m, k), n = x_MK.shape, weight_NK.shape[0]
    ways: dict[str, Callable[[], object]] = {
        "output": lambda: x_MK @ weight_NK.t(),
        "input_gradient": lambda: g_MN @ weight_NK,
        "weight_gradient": lambda: g_MN.t() @ x_MK,
    }
    for way, work in ways.items():
        s = b.seconds(work)
        yield {"precision": precision, "way": way, "m": m, "k": k, "n": n, "s": s, "tflops": 2e-12 * m * k * n / s}


def heads_of_the_model(b: Bench) -> Iterator[Row]:
    """bfloat16 products of the output head, whole and over 2, 4 and 8 tensor ranks."""
    for dim in (4096, 8192, 16384):
        for tp in (1, 2, 4, 8):
            weight_NK = b.random(128_256 // tp // b.small, dim // b.small)
            for tokens in (1024, 2048, 8192, 16384):
                x_MK, g_MN = b.random(tokens // b.small, dim // b.small), b.random(tokens // b.small, len(weight_NK))
                yield from _three_ways(b, x_MK, g_MN, weight_NK, precision="bf16")


def float32_products(b: Bench) -> Iterator[Row]:
    """float32 products, exact as torch has them by default and with TF32."""
    for k, n in ((4096, 4096), (4096, 14336), (14336, 4096), (8192, 28672)):
        weight_NK = b.random(n // b.small, k // b.small, dtype=torch.float32)
        for tokens in (2048, 8192, 16384):
            x_MK = b.random(tokens // b.small, k // b.small, dtype=torch.float32)
            g_MN = b.random(tokens // b.small, n // b.small, dtype=torch.float32)
            for precision, setting in (("fp32", "highest"), ("tf32", "high")):
                torch.set_float32_matmul_precision(setting)
                yield from _three_ways(b, x_MK, g_MN, weight_NK, precision=precision)
            torch.set_float32_matmul_precision("highest")


def float8_products(b: Bench) -> Iterator[Row]:
    """float8 products with one scale a tensor and one a row, and the product with casts as torchao does it."""
    for k, n in layers(b.small):
        for m in (2048 // b.small, 8192 // b.small, 16384 // b.small, 32768 // b.small):
            if not b.on_gpu:
                continue
            a_MK = b.random(m, k).to(torch.float8_e4m3fn)
            b_KN = b.random(n, k).to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=b.device)
            rows, columns = torch.ones(m, 1, device=b.device), torch.ones(1, n, device=b.device)
            for way, scales in (("fp8 tensorwise", (one, one)), ("fp8 rowwise", (rows, columns))):
                for fast in (True, False):
                    s = b.seconds(partial(_scaled, a_MK, b_KN, *scales, fast=fast))
                    yield {
                        "precision": way, "fast_accumulation": fast, "m": m, "k": k, "n": n, "s": s,
                        "tflops": 2e-12 * m * k * n / s,
                    }  # fmt: skip


def _scaled(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool) -> Tensor:
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def float8_casts(b: Bench) -> Iterator[Row]:
    """What a float8 product needs first: the largest element, the cast, its transpose; eager and compiled."""

    def cast_tensor(x: Tensor) -> Tensor:
        scale = 448.0 / x.abs().max().float().clamp(min=1e-12)
        return (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)

    def cast_rows(x: Tensor) -> Tensor:
        scale = 448.0 / x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12)
        return (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)

    works: dict[str, Callable[[Tensor], object]] = {
        "largest": lambda x: x.abs().max(),
        "cast tensor": cast_tensor,
        "cast rows": cast_rows,
        "cast columns": lambda x: cast_rows(x.t()),
    }
    for m, n in ((2048, 4096), (8192, 4096), (8192, 14336)):
        x = b.random(m // b.small, n // b.small)
        for name, work in works.items():
            for how, run in both(b, work):
                yield {"work": name, "how": how, "elements": x.numel(), "s": b.seconds(partial(run, x))}
