"""Forward and backward of one block of Llama 3 8B, compiled in several ways, on the GPU that is here.

`python tests/bench/bench_block.py [--output FILE] [--batch N] [NAMES]` times each variant (CUDA events, median of 30)
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch import Tensor
from torch.nn.functional import linear, rms_norm
from torch.profiler import ProfilerActivity, profile

from engine.config import Float8
from engine.model.attention import attention_kernels
from engine.model.linear import Linear, Norm
from engine.model.llama import Block
from engine.model.rope import table
from engine.parallel.quantize import _float8_product
from engine.parallel.recompute import _all_again, _cheap_again
from engine.shapes import FLAVORS

SHAPE = FLAVORS["llama3"]["8B"]
DEVICE = torch.device("cuda")
# One behind the other, as in training: a card that rests in between is cooler and faster.
CALLS = 30


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


class TransposedBackward(torch.autograd.Function):
    """A product whose gradient of the input reads a transposed copy of the weight, so that both lie along the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, weight_KN: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_KN)
        return linear(x, weight_NK)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_KN = ctx.saved_tensors
        gradient_RN = gradients[0].flatten(0, -2)
        gradient_NK = gradient_RN.t() @ x.flatten(0, -2)
        return (gradient_RN @ weight_KN.t()).view(x.shape), gradient_NK, None


def block(
    *,
    float8: bool,
    norm: Callable[[Norm, Tensor], Tensor] | None,
    transposed: bool,
    own: dict[str, bool] | None,
) -> Block:
    """A block in bfloat16 with random weights."""
    with DEVICE:
        made = Block(SHAPE).to(torch.bfloat16)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0.0 if weight.ndim > 1 else 1.0, 0.02)
    for module in made.modules():
        if float8 and isinstance(module, Linear):
            module.product = _float8_product(Float8().recipe_name, False)
        if transposed and isinstance(module, Linear):
            weight_KN = module.weight.detach().t().contiguous()
            module.product = lambda x, weight, copy=weight_KN: TransposedBackward.apply(x, weight, copy)
        if norm is not None and isinstance(module, Norm):
            module.forward = MethodType(norm, module)  # type: ignore[method-assign]
    if own is not None:
        from float8_candidate import Own, use

        use(made, Own(**own))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to compile a block: `inductor` are settings of the compiler, `budget` is the share of memory it keeps.

    `own` says which kernels of float8_candidate.py are used, and that its functions are.
    """

    float8: bool = False
    norm: Callable[[Norm, Tensor], Tensor] | None = None
    again: Callable[..., Tensor] | None = None
    inductor: dict[str, Any] = field(default_factory=dict)
    budget: float = 1.0
    transposed: bool = False
    own: dict[str, bool] | None = None


TUNED = {"coordinate_descent_tuning": True}
POINTWISE = {"max_autotune_pointwise": True}
PLAIN = {"swiglu": False, "casts": False, "scales": False}
VARIANTS = {
    "bf16": Variant(),
    "bf16, torch's norm": Variant(norm=by_torch),
    "bf16, tuned": Variant(inductor=TUNED),
    "bf16, transposed weights": Variant(transposed=True),
    "bf16, selective": Variant(again=_cheap_again),
    "bf16, full": Variant(again=_all_again),
    **{f"bf16, budget {budget}": Variant(budget=budget) for budget in (0.8, 0.6, 0.5, 0.4, 0.3)},
    "float8": Variant(float8=True),
    "float8, torch's norm": Variant(float8=True, norm=by_torch),
    "float8, norm by hand": Variant(float8=True, norm=by_hand),
    "float8, tuned": Variant(float8=True, inductor=TUNED),
    "float8, pointwise": Variant(float8=True, inductor=POINTWISE),
    "float8, combined": Variant(float8=True, inductor={"combo_kernels": True}),
    "float8, selective": Variant(float8=True, again=_cheap_again),
    **{f"float8, budget {budget}": Variant(float8=True, budget=budget) for budget in (0.8, 0.6, 0.4)},
    "float8, own functions": Variant(own=PLAIN),
    "float8, own swiglu": Variant(own=PLAIN | {"swiglu": True}),
    "float8, own swiglu and casts": Variant(own=PLAIN | {"swiglu": True, "casts": True}),
    "float8, own casts": Variant(own={}),
    "float8, own casts and norms": Variant(own={"norms": True}),
    "float8, own casts and norms, weights kept": Variant(own={"norms": True, "keep": True}),
}


def measure(name: str, batch: int) -> dict[str, Any]:
    """Milliseconds of one forward and backward, and its kernels."""
    variant = VARIANTS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = block(float8=variant.float8, norm=variant.norm, transposed=variant.transposed, own=variant.own)
    if variant.again is not None:
        made.forward = MethodType(variant.again, made)  # type: ignore[method-assign]
    cos, sin = table(SHAPE, 8192, DEVICE)
    x_BSD = torch.randn(batch, 8192, SHAPE.dim, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    gradient_BSD = torch.randn_like(x_BSD)
    kept_bytes: list[int] = []
    began_s = time.perf_counter()
    with configured(variant.inductor), functorch.patch(activation_memory_budget=variant.budget):
        made.forward = torch.compile(made.forward, fullgraph=True)  # type: ignore[method-assign]

        def once() -> Tensor:
            before_bytes = torch.cuda.memory_allocated()
            with attention_kernels("cuda"):
                out: Tensor = made(x_BSD, cos, sin)
            kept_bytes.append(torch.cuda.memory_allocated() - before_bytes)
            out.backward(gradient_BSD)
            for weight in made.parameters():
                weight.grad = None
            x_BSD.grad = None
            return out

        for _ in range(5):
            once()
        torch.cuda.synchronize()
        compiled_s = time.perf_counter() - began_s
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
        for mark in marks[:-1]:
            mark.record()
            once()
        marks[-1].record()
        torch.cuda.synchronize()
        times = [mark.elapsed_time(after) for mark, after in pairwise(marks)]
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
        "kept_mib": kept_bytes[-1] / 2**20,
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
        print(
            f"{name:44} {result['ms']:7.3f} ms, kernels {result['kernels_ms']:7.3f} ms,"
            f" keeps {result['kept_mib']:7.1f} MiB, compiled in {result['compiled_s']:5.1f} s",
            flush=True,
        )
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
