"""Whether `float8_candidate.py` computes what torchao does, and on a GPU how fast each of its kernels is.

`python tests/bench/check_float8_candidate.py` checks the functions in plain operations against torchao to the bit, and
the kernels: compiled where there is a GPU, else in Triton's interpreter. `--time` adds each kernel's time at the
widths of Llama 3 8B and 8,192 tokens, for several ways to cut its work. Ends with 1 where anything differs too much.
"""

# ruff: noqa: E402 - what Triton does is chosen before it is imported

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.cuda.is_available():
    # Before Triton is imported: it chooses for a whole process.
    os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import float8_candidate_kernels as kernels
import triton.language as tl
from float8_candidate import E4M3, E5M2, Normed, Own, Scale, cast, feed_forward, products, scale_of
from torch import Tensor
from torch.nn.functional import silu

from engine.parallel.quantize import _float8_product

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLAIN, KERNELS = Own(swiglu=False, casts=False, scales=False), Own()
SHAPES = [(16, 16), (64, 128), (80, 272), (1040, 144)] + ([(8192, 4096)] if DEVICE.type == "cuda" else [])
# Values of float8 that may differ from plain operations where e^x is computed in another way: float32 is apart by
# units in its last place, and one in thousands then falls on the other side of a rounding to bfloat16.
DIFFER = 2e-3
# A step of bfloat16.
STEP = 2**-7


def random(*shape: int, by: float = 1.0, seed: int = 0) -> Tensor:
    """Normal values in bfloat16."""
    generator = torch.Generator(DEVICE).manual_seed(seed + sum(shape))
    return (by * torch.randn(*shape, generator=generator, device=DEVICE)).bfloat16()


def bits(x: Tensor) -> Tensor:
    """What is stored, as integers."""
    return x.detach().contiguous().view(torch.uint8 if x.itemsize == 1 else torch.int16)


def differ(mine: Tensor, theirs: Tensor) -> float:
    """The share of values that are not the same to the bit; those of float8 are at most one step apart."""
    assert mine.shape == theirs.shape, f"{tuple(mine.shape)} is not {tuple(theirs.shape)}"
    assert mine.dtype == theirs.dtype, f"{mine.dtype} is not {theirs.dtype}"
    apart = (bits(mine).int() - bits(theirs).int()).abs()
    # Around 0 the signs part.
    assert mine.itemsize > 1 or apart[bits(theirs).int() & 0x7F > 0].max() <= 1, "more than a step of float8 apart"
    return float((apart > 0).float().mean())


def round_as_torch_does() -> None:
    """Gives Triton's interpreter conversions that round: its own (3.6) cut bfloat16 off and carry nothing in float8."""
    from triton.runtime import interpreter

    types = {
        tl.float32: torch.float32,
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float8e4nv: E4M3,
        tl.float8e5: E5M2,
    }

    def converted(array: np.ndarray, source: Any, target: Any, rounding_mode: object) -> np.ndarray:  # noqa: ARG001
        x = torch.from_numpy(np.array(array, ndmin=1)).view(types[source]).float()
        if target.primitive_bitwidth == 8:
            x = x.clamp(-torch.finfo(types[target]).max, torch.finfo(types[target]).max)
        as_integers = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[target.primitive_bitwidth]
        return x.to(types[target]).view(as_integers).numpy().reshape(array.shape)

    interpreter._convert_float = converted


def apart(mine: Sequence[Tensor], theirs: Scale) -> float:
    """How far scale and 1 / scale are from torch's, for 1; 0 where they are the same, NaN included."""
    ratios = [float(one.double() / other.double()) for one, other in zip(mine, theirs, strict=True) if one != other]
    same = all(
        torch.equal(one.nan_to_num(-1.0), other.nan_to_num(-1.0)) for one, other in zip(mine, theirs, strict=True)
    )
    return 0.0 if same else max(abs(ratio - 1.0) if math.isfinite(ratio) else math.inf for ratio in ratios)


# ── kernels ──


def checked_casts() -> Iterator[tuple[str, float, float]]:
    """Name, share that differs and share that may."""
    for shape in SHAPES:
        for dtype in (E4M3, E5M2):
            x = random(*shape, by=3.0)
            scale = scale_of(x.abs().amax(), dtype)
            expected = cast(x, scale, dtype)
            row, column = kernels.cast_both(x, scale.by, dtype)
            yield f"cast {shape} {dtype}, in order", differ(kernels.cast_row(x, scale.by, dtype), expected), 0.0
            yield f"cast {shape} {dtype}", differ(row, expected), 0.0
            yield f"cast {shape} {dtype}, transposed", differ(column, expected.t()), 0.0
            yield (
                f"cast {shape} {dtype}, only that",
                differ(kernels.cast_transposed(x, scale.by, dtype), expected.t()),
                0.0,
            )
        beyond = Scale(scale.by * 4, scale.inverse / 4)
        yield (
            f"cast {shape}, too large",
            differ(kernels.cast_both(x, beyond.by, E5M2)[1], cast(x, beyond, E5M2).t()),
            0,
        )
        yield f"scale {shape}", apart(kernels.scale(x, E5M2), scale), 0.0


def checked_swiglu() -> Iterator[tuple[str, float, float]]:
    """The same for SwiGLU, forward and backward."""
    for shape in SHAPES:
        gate, up, gradient = random(*shape, by=2.0), random(*shape, seed=1), random(*shape, by=1e-3, seed=2)
        wide, h = gate.float(), (silu(gate.float()) * up.float()).bfloat16()
        sigmoid = wide.sigmoid()
        d_up = (gradient.float() * (wide * sigmoid)).bfloat16()
        d_gate = (gradient.float() * up.float() * (sigmoid * (1.0 + wide * (1.0 - sigmoid)))).bfloat16()
        h_scale, gate_scale, up_scale = (
            scale_of(x.abs().amax(), dtype) for x, dtype in ((h, E4M3), (d_gate, E5M2), (d_up, E5M2))
        )
        yield f"scale of h {shape}", apart(kernels.swiglu_scale(gate, up, E4M3), h_scale), STEP
        cast_h = kernels.swiglu_cast(gate, up, h_scale.by, E4M3)
        yield f"swiglu cast {shape}", differ(cast_h, cast(h, h_scale, E4M3)), DIFFER
        scales = kernels.swiglu_gradients_scales(gradient, gate, up, E5M2)
        yield f"scale of the gradient of gate {shape}", apart(scales[:2], gate_scale), STEP
        yield f"scale of the gradient of up {shape}", apart(scales[2:], up_scale), STEP
        found = kernels.swiglu_gradients_cast(gradient, gate, up, gate_scale.by, up_scale.by, h_scale.by, E5M2, E4M3)
        d_gate8, d_up8, h8 = cast(d_gate, gate_scale, E5M2), cast(d_up, up_scale, E5M2), cast(h, h_scale, E4M3)
        expected = (d_gate8, d_gate8.t(), d_up8, d_up8.t(), h8.t())
        for name, mine, theirs in zip(
            ("gate", "gate, transposed", "up", "up, transposed", "h"), found, expected, strict=True
        ):
            yield f"cast gradient of {name} {shape}", differ(mine, theirs), DIFFER


def checked_norms() -> Iterator[tuple[str, float, float]]:
    """RMSNorm while it is cast, and its scale."""
    for shape in SHAPES:
        x, weight = random(*shape, by=3.0), (1.0 + 0.2 * random(shape[1], seed=5).float()).bfloat16()
        norm = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        normed = (x.float() * norm * weight.float()).bfloat16()
        expected = scale_of(normed.abs().amax(), E4M3)
        found, *scale = kernels.norm_scale(x, weight, 1e-5, E4M3)
        yield f"norm of rows {shape}", float((found / norm - 1.0).abs().max()), 1e-6
        yield f"scale of a norm {shape}", apart(scale, expected), STEP
        row, column = kernels.cast_normed(x, norm, weight, expected.by, E4M3)
        yield f"cast of a norm {shape}", differ(row, cast(normed, expected, E4M3)), 0.0
        yield f"cast of a norm {shape}, transposed", differ(column, cast(normed, expected, E4M3).t()), 0.0


def checked_not_finite() -> Iterator[tuple[str, float, float]]:
    """NaN and infinity reach scales as they do in torch, and what is all zeros has a scale."""
    one = torch.ones(64, 64, dtype=torch.bfloat16, device=DEVICE)
    for value in (float("nan"), float("inf"), 0.0):
        x = one * 0
        x[5, 7] = value
        found = {
            "x": kernels.scale(x, E4M3),
            "h": kernels.swiglu_scale(one, x, E4M3),
            "the gradient of up": kernels.swiglu_gradients_scales(x, one, one, E4M3)[2:],
        }
        for name, mine in found.items():
            yield f"scale of {name} with {value}", apart(mine, scale_of(x.abs().amax(), E4M3)), 0.0


# ── functions ──


def results(of: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Outputs and then gradients of all inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outs = of(*leaves)
    gradients = [random(*out.shape, by=1e-3, seed=seed + at) for at, out in enumerate(outs)]
    torch.autograd.backward(outs, gradients)
    return [*outs, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def checked_functions(own: Own, *, exact: bool) -> Iterator[tuple[str, float, float]]:
    """Layers with one input and the feed-forward against torchao's products; on a CPU these are emulated.

    One value of float8 that is a step apart changes a whole row of what comes out, but not its norm.
    """
    product = _float8_product("tensorwise", DEVICE.type == "cpu")
    norm = Normed(torch.ones(64, device=DEVICE), 1e-5)
    x = random(2, 48, 64)
    weights = [random(n, 64, by=0.1, seed=n) for n in (64, 32, 32)]
    mine = results(lambda x, *w: products(x, w, own, norm=norm), (x, *weights), 10)
    theirs = results(lambda x, *w: [product(x, one) for one in w], (x, *weights), 10)
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        yield f"{own} layers side by side, {at}", differ(one, other), 0.0
    w1, w3, w2 = random(176, 64, by=0.1), random(176, 64, by=0.1, seed=3), random(64, 176, by=0.1, seed=4)

    def theirs_through(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> list[Tensor]:
        # One rounding to bfloat16, forward and back.
        gate, up = product(x, w1), product(x, w3)
        return [product((silu(gate.float()) * up.float()).bfloat16(), w2)]

    mine = results(lambda *given: [feed_forward(given[0], given[1:], own, norm)], (x, w1, w3, w2), 20)
    theirs = results(theirs_through, (x, w1, w3, w2), 20)
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        yield f"{own} feed-forward, {at}", differ(one, other), 0.0 if exact else 0.5
        far = (one.float() - other.float()).norm() / other.float().norm()
        yield f"{own} feed-forward, {at}: norm of what differs", float(far.detach()), 0.0 if exact else 0.02


# ── time ──


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of 20, one behind the other, of more than the cache holds."""
    for _ in range(3):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
    for mark in marks:
        mark.record()
        call()
    torch.cuda.synchronize()
    return sorted(one.elapsed_time(two) for one, two in pairwise(marks))[10]


def told(name: str, how: object, call: Callable[[], Any], moved: int) -> None:
    """One line: time, and bytes a second."""
    try:
        ms = milliseconds(call)
    except Exception as failed:  # noqa: BLE001 - another way may work
        print(f"{name:22} {how}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
    else:
        print(f"{name:22} {how!s:60} {ms:7.4f} ms {moved / ms / 1e9:6.2f} TB/s", flush=True)


def timed() -> None:
    """Every kernel, cut in several ways."""
    rows, hidden, dim = 8192, 14336, 4096
    gate, up, gradient, x = (random(rows, width, seed=width) for width in (hidden, hidden, hidden, dim))
    weight, one = random(hidden, dim), torch.ones((), device=DEVICE)
    rows_norm = torch.ones(rows, 1, device=DEVICE)
    n, call = gate.numel(), (gradient, gate, up, one, one, one, E5M2, E4M3)
    usual = dict(kernels.TILES), dict(kernels.STRETCHES)
    for pairs, columns, warps in ((32, 128, 8), (32, 64, 4), (32, 64, 8), (32, 128, 16), (64, 64, 8)):
        tile = kernels.Tile(pairs, columns, warps)
        kernels.TILES.update(cast=tile, gradients=tile)
        told("cast both, input", tile, lambda: kernels.cast_both(x, one, E4M3), 4 * x.numel())
        told("cast transposed, weight", tile, lambda: kernels.cast_transposed(weight, one, E4M3), 3 * weight.numel())
        given = (x, rows_norm, x[0], one, E4M3)
        told("cast normed", tile, lambda given=given: kernels.cast_normed(*given), 4 * x.numel())
        told("gradients cast", tile, lambda: kernels.swiglu_gradients_cast(*call), 11 * n)
    for elements, warps, programs in ((2048, 4, 8), (2048, 4, 32), (4096, 4, 8), (1024, 4, 16)):
        stretch = kernels.Stretch(elements, warps, programs)
        kernels.STRETCHES.update(dict.fromkeys(kernels.STRETCHES, stretch))
        told("cast row, weight", stretch, lambda: kernels.cast_row(weight, one, E4M3), 3 * weight.numel())
        told("scale, weight", stretch, lambda: kernels.scale(weight, E4M3), 2 * weight.numel())
        told("swiglu scale", stretch, lambda: kernels.swiglu_scale(gate, up, E4M3), 4 * n)
        told("norm scale", stretch, lambda: kernels.norm_scale(x, x[0], 1e-5, E4M3), 2 * x.numel())
        told("swiglu cast", stretch, lambda: kernels.swiglu_cast(gate, up, one, E4M3), 5 * n)
        told("gradients scales", stretch, lambda: kernels.swiglu_gradients_scales(*call[:3], E5M2), 6 * n)
    kernels.TILES.update(usual[0])
    kernels.STRETCHES.update(usual[1])


def main() -> int:
    """Checks, and times where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    wrong = count = 0
    if DEVICE.type == "cpu":
        round_as_torch_does()
    suites = {
        "casts": checked_casts,
        "swiglu": checked_swiglu,
        "norms": checked_norms,
        "not finite": checked_not_finite,
        "plain functions": lambda: checked_functions(PLAIN, exact=DEVICE.type == "cpu"),
        "functions": lambda: checked_functions(KERNELS, exact=False),
    }
    for title, suite in suites.items():
        try:
            for name, differs, may in suite():
                count += 1
                wrong += differs > may
                if differs > 0:
                    print(f"{'WRONG' if differs > may else 'ok   '} {name}: {differs:.2e} of {may:.0e}", flush=True)
        except Exception as failed:  # noqa: BLE001 - the next suite says more
            wrong += 1
            print(f"WRONG {title}: {type(failed).__name__}: {str(failed)[:1500]}", flush=True)
    print(f"{count} checked on {DEVICE.type}, {wrong} wrong", flush=True)
    if options.time:
        timed()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
