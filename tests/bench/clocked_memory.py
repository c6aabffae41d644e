"""What moves bytes, as rows: copies, element-wise kernels, optimizer, ends of the model; and starts of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from clocked import Bench, Row, both
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu

from engine.model.loss import cross_entropy_sum
from engine.model.rope import rotate
from engine.optim import gradient_norm


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
            for how, run in both(b, work):
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
        for how, run in both(b, cross_entropy_sum):
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
