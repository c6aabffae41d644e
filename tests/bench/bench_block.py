"""Forward and backward of one block of Llama 3 8B, compiled in several ways, on the GPU that is here.

`python tests/bench/bench_block.py [--output FILE] [--batch N] [NAMES]` times each variant (CUDA events, median of 20)
and shows where its time goes: matrix products, attention, and each of the largest kernels that the compiler wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import Tensor
from torch.nn.functional import rms_norm
from torch.profiler import ProfilerActivity, profile

from engine.config import Float8
from engine.model.attention import attention_kernels
from engine.model.linear import Linear, Norm
from engine.model.llama import Block
from engine.model.rope import table
from engine.parallel.quantize import _float8_product
from engine.shapes import FLAVORS

SHAPE = FLAVORS["llama3"]["8B"]
DEVICE = torch.device("cuda")


def by_torch(norm: Norm, x: Tensor) -> Tensor:
    """The norm whose backward the compiler writes."""
    return rms_norm(x, norm.normalized_shape, norm.weight, norm.eps)


def by_hand(norm: Norm, x: Tensor) -> Tensor:
    """The norm in single operations."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + (norm.eps or 0.0))
    return ((wide * scale).to(x.dtype)) * norm.weight


@contextmanager
def configured(values: dict[str, Any]) -> Iterator[None]:
    """Settings of the compiler; those that this version does not have are told."""
    known = {key: value for key, value in values.items() if key.split(".")[-1] in dir(_owner(key))}
    for key in values.keys() - known.keys():
        print(f"  no inductor.{key} here")
    with inductor.patch(known):
        yield


def _owner(key: str) -> Any:
    return inductor.triton if key.startswith("triton.") else inductor


def block(*, float8: bool, norm: Callable[[Norm, Tensor], Tensor] | None) -> Block:
    """A block in bfloat16 with random weights."""
    with DEVICE:
        made = Block(SHAPE).to(torch.bfloat16)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0.0 if weight.ndim > 1 else 1.0, 0.02)
    for module in made.modules():
        if float8 and isinstance(module, Linear):
            module.product = _float8_product(Float8().recipe_name, False)
        if norm is not None and isinstance(module, Norm):
            module.forward = MethodType(norm, module)  # type: ignore[method-assign]
    return made


NO_MIX = {"triton.mix_order_reduction": False}
VARIANTS: dict[str, tuple[bool, Any, dict[str, Any]]] = {
    "bf16": (False, None, {}),
    "bf16, no mixed reductions": (False, None, NO_MIX),
    "bf16, norm by hand": (False, by_hand, {}),
    "bf16, torch's norm": (False, by_torch, {}),
    "float8": (True, None, {}),
    "float8, no mixed reductions": (True, None, NO_MIX),
    "float8, norm by hand, no mixed reductions": (True, by_hand, NO_MIX),
    "float8, torch's norm": (True, by_torch, {}),
    "float8, torch's norm, no mixed reductions": (True, by_torch, NO_MIX),
}


def measure(name: str, batch: int) -> dict[str, Any]:
    """Milliseconds of one forward and backward, and its kernels."""
    float8, norm, values = VARIANTS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = block(float8=float8, norm=norm)
    cos, sin = table(SHAPE, 8192, DEVICE)
    x_BSD = torch.randn(batch, 8192, SHAPE.dim, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    gradient_BSD = torch.randn_like(x_BSD)
    began_s = time.perf_counter()
    with configured(values):
        made.forward = torch.compile(made.forward, fullgraph=True)  # type: ignore[method-assign]

        def once() -> Tensor:
            with attention_kernels("cuda"):
                out: Tensor = made(x_BSD, cos, sin)
            out.backward(gradient_BSD)
            for weight in made.parameters():
                weight.grad = None
            x_BSD.grad = None
            return out

        for _ in range(5):
            once()
        torch.cuda.synchronize()
        compiled_s = time.perf_counter() - began_s
        times = []
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            once()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            once()
            torch.cuda.synchronize()
    kernels = sorted(
        ((event.key, event.device_time_total / 1e3, event.count) for event in seen.key_averages()), key=lambda e: -e[1]
    )
    return {
        "name": name,
        "ms": statistics.median(times),
        "kernels_ms": sum(ms for _, ms, _ in kernels),
        "compiled_s": compiled_s,
        "kernels": [{"name": key[:160], "ms": ms, "calls": count} for key, ms, count in kernels if ms > 0.02],
    }


def main() -> None:
    """All variants, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    results = []
    for name in options.names or VARIANTS:
        try:
            result = measure(name, options.batch)
        except Exception as failed:  # noqa: BLE001 - the next variant may work
            print(f"{name}: {type(failed).__name__}: {str(failed)[:600]}", flush=True)
            continue
        results.append(result)
        print(f"{name:44} {result['ms']:7.3f} ms, kernels {result['kernels_ms']:7.3f} ms", flush=True)
        for kernel in result["kernels"][:18] if os.environ.get("SHOW") else ():
            print(f"    {kernel['ms']:7.3f} ms {kernel['calls']:3} x {kernel['name'][:110]}")
        if options.output is not None:
            kept = {
                "date": datetime.now(UTC).isoformat(timespec="minutes"),
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "batch": options.batch,
                "rows": results,
            }
            options.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
