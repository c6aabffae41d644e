"""Seconds of the kernels that training is made of, on the GPU that is here.

`python tests/bench/bench_kernels.py [--output FILE] [--tiny] [SECTIONS]` times matrix products of Llama 3's layers,
whole and split, float8 and float32 products, attention, copies, element-wise work, the optimizer, the ends of the
model and whole blocks, one section after another, and writes each as rows with what it did and how long that took.
Needs one GPU and about five minutes; `--tiny` goes through all of it in small, also on a CPU, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from engine.model.attention import attention_kernels
from engine.model.llama import Block
from engine.model.loss import cross_entropy_sum
from engine.model.rope import rotate, table
from engine.optim import gradient_norm
from engine.shapes import FLAVORS, ModelShape

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how large: `small` divides sizes, so that a CPU can walk through."""

    device: torch.device
    small: int = 1
    least_s: float = 0.012

    @property
    def on_gpu(self) -> bool:
        """Whether events of a GPU are there to time with."""
        return self.device.type == "cuda"

    def random(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Random numbers: zeros switch fewer transistors, and run faster than training does."""
        return torch.randn(size, device=self.device, dtype=dtype)

    def seconds(self, work: Callable[[], object], *, rounds: int = 3) -> float:
        """Median over rounds of the mean time of calls in a row, as they stand in a training step."""
        work()
        self.wait()
        once_s = self._of(work, 1)
        calls = max(1, min(200, round(self.least_s / max(once_s, 1e-6))))
        return statistics.median(self._of(work, calls) for _ in range(rounds if calls > 1 else 2))

    def _of(self, work: Callable[[], object], calls: int) -> float:
        if not self.on_gpu:
            began_s = time.perf_counter()
            for _ in range(calls):
                work()
            return (time.perf_counter() - began_s) / calls
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for _ in range(calls):
            work()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1000 / calls

    def wait(self) -> None:
        """Until the GPU is idle."""
        if self.on_gpu:
            torch.cuda.synchronize()


MODELS = {name: FLAVORS["llama3"][name] for name in ("8B", "70B", "405B")}


def layers(small: int) -> list[tuple[int, int]]:
    """(k, n) of every linear layer of a block over 1, 2, 4 and 8 tensor ranks, each once."""
    found: set[tuple[int, int]] = set()
    for shape in MODELS.values():
        kv = shape.n_kv_heads * shape.head_dim
        for tp in (1, 2, 4, 8):
            found |= {(shape.dim, shape.dim // tp), (shape.dim, kv // tp), (shape.dim, shape.ffn_dim // tp)}
            found |= {(shape.dim // tp, shape.dim), (shape.ffn_dim // tp, shape.dim)}
    return sorted({(max(16, k // small), max(16, n // small)) for k, n in found})


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
            for how, run in _both(b, work):
                yield {"work": name, "how": how, "elements": x.numel(), "s": b.seconds(partial(run, x))}


def _both(b: Bench, work: Callable[..., object]) -> list[tuple[str, Callable[..., object]]]:
    """As it is, and compiled with a graph of its own."""
    torch._dynamo.reset()
    return [("eager", work), ("compile", torch.compile(work, dynamic=False))] if b.on_gpu else [("eager", work)]


def attention(b: Bench) -> Iterator[Row]:
    """Attention forward and backward by kernel, length and heads; causal, and the whole square as a piece."""
    kernels = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if not b.on_gpu:
        kernels = {"math": SDPBackend.MATH}
    for seq_len in (2048, 4096, 8192, 16384, 32768, 65536, 131072):
        for heads, kv_heads in ((32, 8), (8, 1), (16, 2)):
            for width in (128, 64):
                for batch in sorted({1, max(1, 8192 // seq_len)}):
                    for causal in (True, False) if seq_len in (4096, 16384) else (True,):
                        size = (batch, seq_len // b.small**2, heads, kv_heads, width)
                        for name, kernel in kernels.items():
                            row: Row = {"kernel": name, "causal": causal}
                            try:
                                with sdpa_kernel(kernel):
                                    row |= _attention(b, *size, causal=causal)
                            except RuntimeError as refused:
                                row |= {"size": size, "error": str(refused)[:200]}
                            yield row


def _attention(b: Bench, batch: int, seq_len: int, heads: int, kv_heads: int, width: int, *, causal: bool) -> Row:
    # As projections give them: the heads of a token side by side.
    sizes = [(batch, seq_len, count, width) for count in (heads, kv_heads, kv_heads)]
    q, k, v = (b.random(*size).requires_grad_().transpose(1, 2) for size in sizes)

    def forward() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    out = forward()
    gradient = b.random(batch, seq_len, heads, width).transpose(1, 2)
    forward_s = b.seconds(forward)
    backward_s = b.seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    flops = 4 * batch * seq_len**2 * heads * width / (2 if causal else 1)
    return {
        "batch": batch, "seq_len": seq_len, "heads": heads, "kv_heads": kv_heads, "head_dim": width,
        "forward_s": forward_s, "backward_s": backward_s,
        "forward_tflops": flops / forward_s / 1e12, "backward_tflops": 2.5 * flops / backward_s / 1e12,
    }  # fmt: skip


def copies(b: Bench) -> Iterator[Row]:
    """Memory to memory, a cast to float32, and to and from the host."""
    for mib in (1, 4, 16, 64, 256, 1024, 4096):
        n = mib * (1 << 20) // 2 // b.small**2
        x, y, wide = b.random(n), b.random(n), torch.empty(n, device=b.device, dtype=torch.float32)
        yield _moved(b, "copy", 4 * n, partial(y.copy_, x))
        yield _moved(b, "cast to float32", 6 * n, partial(wide.copy_, x))
        yield _moved(b, "cast to bfloat16", 6 * n, partial(x.copy_, wide))
        if mib <= 1024 and b.on_gpu:
            pinned, plain = torch.empty(n, dtype=x.dtype, pin_memory=True), torch.empty(n, dtype=x.dtype)
            yield _moved(b, "to the host, pinned", 2 * n, partial(pinned.copy_, x, non_blocking=True))
            yield _moved(b, "from the host, pinned", 2 * n, partial(x.copy_, pinned, non_blocking=True))
            yield _moved(b, "to the host", 2 * n, partial(plain.copy_, x))


def _moved(b: Bench, work: str, bytes_: int, run: Callable[[], object], **more: object) -> Row:
    s = b.seconds(run)
    return {"work": work, **more, "bytes": bytes_, "s": s, "tbyte_per_s": bytes_ / s / 1e12}


def elementwise(b: Bench) -> Iterator[Row]:
    """Norm, SwiGLU, residual sum, rotary turn: forward and backward, eager and compiled.

    `bytes` are the least each moves: inputs read once, outputs written once.
    """
    for m, dim in ((2048, 4096), (8192, 4096), (32768, 4096), (8192, 16384)):
        m, dim = m // b.small, dim // b.small
        n, ffn = m * dim, 7 * dim // 2
        x, y, gradient = (b.random(m, dim).requires_grad_(at < 2) for at in range(3))
        weight = b.random(dim).requires_grad_()
        gate, up, gradient_F = (b.random(m, ffn).requires_grad_(at < 2) for at in range(3))
        heads = b.random(1, m, dim // 128, 128).requires_grad_()
        angles = (b.random(m, 64, dtype=torch.float32), b.random(m, 64, dtype=torch.float32))
        cases: list[tuple[str, Callable[..., Tensor], tuple[Tensor, ...], Tensor, tuple[int, int]]] = [
            ("norm", lambda x, w: rms_norm(x, (x.shape[-1],), w, 1e-5), (x, weight), gradient, (4 * n, 6 * n)),
            ("swiglu", lambda a, c: silu(a) * c, (gate, up), gradient_F, (6 * m * ffn, 10 * m * ffn)),
            ("add", lambda a, c: a + c, (x, y), gradient, (6 * n, 0)),
            ("rotate", lambda h, c, s: rotate(h, c, s), (heads, *angles), gradient.view(heads.shape), (4 * n, 4 * n)),
        ]
        for name, work, inputs, given, (forward_bytes, backward_bytes) in cases:
            for how, run in _both(b, work):
                out: Any = run(*inputs)
                yield _moved(b, name, forward_bytes, partial(run, *inputs), how=how, m=m, dim=dim)
                if backward_bytes:
                    wanted = [each for each in inputs if each.requires_grad]
                    back = partial(torch.autograd.grad, out, wanted, given, retain_graph=True)
                    yield _moved(b, f"{name} backward", backward_bytes, back, how=how, m=m, dim=dim)


def optimizers(b: Bench) -> Iterator[Row]:
    """Fused AdamW on float32 weights as titan calls it, and the norm of their gradients."""
    for elements in (1e7, 1e8, 1e9, 4e9):
        each = max(1000, int(elements / 32 / b.small**3))
        weights = [nn.Parameter(torch.randn(each, device=b.device)) for _ in range(32)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        adam = torch.optim.AdamW(weights, fused=True)
        grads = [weight.grad for weight in weights if weight.grad is not None]
        n = 32 * each
        yield _moved(b, "AdamW fused", 28 * n, adam.step, elements=n)
        yield _moved(b, "gradient norm", 4 * n, partial(gradient_norm, grads), elements=n)
        yield _moved(b, "zero", 4 * n, partial(torch._foreach_zero_, grads), elements=n)


def ends(b: Bench) -> Iterator[Row]:
    """Embedding and cross entropy, forward and backward; logits in bfloat16, as the head gives them."""
    vocab = 128_256 // b.small
    for tokens in (1024 // b.small, 4096 // b.small, 8192 // b.small, 16384 // b.small):
        ids = torch.randint(vocab, (1, tokens), device=b.device)
        for dim in (4096 // b.small, 8192 // b.small):
            for dtype in (torch.bfloat16, torch.float32):
                weight = b.random(vocab, dim, dtype=dtype).requires_grad_()
                out, given = embedding(ids, weight), b.random(1, tokens, dim, dtype=dtype)
                row = {"tokens": tokens, "dim": dim, "dtype": str(dtype)}
                back = partial(torch.autograd.grad, out, weight, given, retain_graph=True)
                yield {"work": "embedding", **row, "s": b.seconds(partial(embedding, ids, weight))}
                yield {"work": "embedding backward", **row, "s": b.seconds(back)}
        logits = b.random(1, tokens, vocab).requires_grad_()
        for how, run in _both(b, cross_entropy_sum):
            loss: Any = run(logits, ids)
            row = {"tokens": tokens, "vocab": vocab, "how": how}
            back = partial(torch.autograd.grad, loss, logits, retain_graph=True)
            yield {"work": "cross entropy", **row, "s": b.seconds(partial(run, logits, ids))}
            yield {"work": "cross entropy backward", **row, "s": b.seconds(back)}


def launches(b: Bench) -> Iterator[Row]:
    """What the host needs for a small kernel, and the GPU between two of them (in a graph)."""
    tiny, weight = b.random(16, 16), b.random(16, 16)
    b_calls = replace(b, least_s=0.05)
    works: dict[str, Callable[[], object]] = {
        "add in place": lambda: tiny.add_(1.0),
        "product": lambda: linear(tiny, weight),
        "copy": lambda: tiny.copy_(weight),
    }
    for name, work in works.items():
        yield {"work": name, "how": "host", "s": b_calls.seconds(work)}
        if b.on_gpu:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(200):
                    work()
            yield {"work": name, "how": "graph", "s": b.seconds(graph.replay) / 200}


def sustained(b: Bench) -> Iterator[Row]:
    """One large product over and over: what clocks do as the card warms up; and a short rest after each second."""
    n = 8192 // b.small
    x, weight = b.random(n, n), b.random(n, n)
    for _ in range(8 if b.on_gpu else 1):
        began_s, times = time.perf_counter(), []
        while time.perf_counter() - began_s < (1.0 if b.on_gpu else 0.01):
            times.append(b._of(lambda: linear(x, weight), 20))
        yield {"m": n, "k": n, "n": n, "s": statistics.median(times), "tflops": 2e-12 * n**3 / statistics.median(times)}


def blocks(b: Bench) -> Iterator[Row]:
    """A whole block of titan's model in bfloat16, one GPU: forward and backward with all gradients."""
    shapes: dict[str, ModelShape] = {name: FLAVORS["llama3"][name] for name in ("1B", "3B", "8B", "70B")}
    if b.small > 1:
        shapes = {"debugmodel": FLAVORS["llama3"]["debugmodel"]}
    for name, shape in shapes.items():
        for batch, seq_len in ((1, 16), (1, 2048), (1, 8192), (2, 8192), (1, 32768)):
            # A compilation takes seconds: the largest sizes of one model, and one size of each.
            compiled = b.on_gpu and ((seq_len == 8192 and batch == 1) or (name == "8B" and batch == 1))
            for how in ("eager", "compile") if compiled else ("eager",):
                yield {"model": name, "batch": batch, "seq_len": seq_len, "how": how} | _block(
                    b, shape, batch, seq_len if seq_len < 64 else seq_len // b.small, how=how
                )


def _block(b: Bench, shape: ModelShape, batch: int, seq_len: int, *, how: str) -> Row:
    torch._dynamo.reset()
    block = Block(shape).to(b.device, torch.bfloat16)
    run: Callable[..., Tensor] = torch.compile(block, fullgraph=True, dynamic=False) if how == "compile" else block
    cos, sin = table(shape, seq_len, b.device)
    x = b.random(batch, seq_len, shape.dim).requires_grad_()
    given = b.random(batch, seq_len, shape.dim)
    wanted = [x, *block.parameters()]
    with attention_kernels(b.device.type):
        out = run(x, cos, sin)
        forward_s = b.seconds(lambda: run(x, cos, sin))
        backward_s = b.seconds(lambda: torch.autograd.grad(out, wanted, given, retain_graph=True))
    return {"forward_s": forward_s, "backward_s": backward_s}


SECTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "launches": launches,
    "copies": copies,
    "sustained": sustained,
    "attention": attention,
    "products": products,
    "heads": heads_of_the_model,
    "optimizers": optimizers,
    "float32_products": float32_products,
    "float8_products": float8_products,
    "blocks": blocks,
    "ends": ends,
    "elementwise": elementwise,
    "float8_casts": float8_casts,
}


def versions(device: torch.device) -> Row:
    """What the numbers belong to."""
    about: Row = {"torch": torch.__version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    if device.type == "cuda":
        about |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        about |= {"cudnn": torch.backends.cudnn.version(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return about


def run_section(b: Bench, section: Callable[[Bench], Iterator[Row]]) -> list[Row]:
    """All rows of a section; what a kernel refuses ends it, and is kept as a row."""
    rows: list[Row] = []
    try:
        for row in section(b):
            rows.append(row)
    except (RuntimeError, TypeError, ValueError) as refused:
        rows.append({"error": str(refused)[:500]})
    return rows


def main() -> None:
    """Times the sections that were asked for, writing after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="names of sections; left out: all")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    b = Bench(device=device, small=32 if asked.tiny else 1, least_s=0.0001 if asked.tiny else 0.012)
    torch.manual_seed(0)
    results: Row = {"about": versions(device)}
    for name in asked.sections or SECTIONS:
        began_s = time.perf_counter()
        results[name] = run_section(b, SECTIONS[name])
        if b.on_gpu:
            torch.cuda.empty_cache()
        errors = [row["error"] for row in results[name] if "error" in row]
        print(f"{name}: {len(results[name])} rows, {time.perf_counter() - began_s:.1f} s", *errors, file=sys.stderr)
        if asked.output:
            rows = (f'"{key}": [\n{_lines(some)}\n]' for key, some in results.items() if key != "about")
            asked.output.write_text(f'{{"about": {json.dumps(results["about"])},\n' + ",\n".join(rows) + "}\n")


def _lines(rows: list[Row]) -> str:
    """A row a line, in six digits."""
    short = [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    return ",\n".join(json.dumps(row) for row in short)


if __name__ == "__main__":
    main()
