"""How kernels are timed for a benchmark, and the layers that are timed.

Knows events of a GPU, sizes that a CPU can walk through, and the shapes of Llama 3's linear layers. Does not know what
is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from engine.measure import once_s
from engine.shapes import FLAVORS

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
        calls = max(1, min(200, round(self.least_s / max(once_s(work, calls=1), 1e-6))))
        return statistics.median(once_s(work, calls=calls) for _ in range(rounds if calls > 1 else 2))

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


def both(b: Bench, work: Callable[..., object]) -> list[tuple[str, Callable[..., object]]]:
    """As it is, and compiled with a graph of its own."""
    torch._dynamo.reset()
    return [("eager", work), ("compile", torch.compile(work, dynamic=False))] if b.on_gpu else [("eager", work)]
