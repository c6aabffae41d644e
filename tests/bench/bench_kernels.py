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
from datetime import UTC, datetime
from pathlib import Path

import torch
from clocked import Bench, Row
from clocked_memory import copies, elementwise, ends, launches, optimizers
from clocked_products import float8_casts, float8_products, float32_products, heads_of_the_model, products
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from engine.measure import once_s
from engine.model.attention import attention_kernels
from engine.model.llama import Block
from engine.model.rope import table
from engine.shapes import FLAVORS, ModelShape


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


def sustained(b: Bench) -> Iterator[Row]:
    """One large product over and over: what clocks do as the card warms up; and a short rest after each second."""
    n = 8192 // b.small
    x, weight = b.random(n, n), b.random(n, n)
    for _ in range(8 if b.on_gpu else 1):
        began_s, times = time.perf_counter(), []
        while time.perf_counter() - began_s < (1.0 if b.on_gpu else 0.01):
            times.append(once_s(lambda: linear(x, weight), calls=20))
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
