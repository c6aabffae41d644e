"""Milliseconds of one Adam update of 16 layers of Llama 3 8B on the GPU that is here, by our kernel and by torch's.

`python tests/bench/bench_adam.py [--output FILE] [--small]` times, for gradients in bfloat16 and in float32: torch's
fused kernel with casts before and copies after it, our kernel in several launches, over one weight of all elements
(what it costs to start a kernel for each weight), with approximate division and root (what exact ones cost), and the
same bytes read and written without arithmetic, which is what memory allows. Rates count what an update needs: gradient,
weight and two states read, weight, states and copy written. Needs 110 GB of one GPU's memory and under 40 seconds;
`--small` is one layer, in 6 GB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.optim.adam import adam

from engine import adam_kernel
from engine.adam_kernel import LAUNCH, Launch, fused_adam
from engine.shapes import FLAVORS, part_parameters

Row = dict[str, Any]

LAUNCHES = (
    LAUNCH,
    Launch(block=1024, warps=8, eviction=""),
    Launch(block=512, warps=4),
    Launch(block=2048, warps=16),
    Launch(block=1024, warps=4),
    Launch(block=2048, warps=8),
)
SETTINGS: Row = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
COUNTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of a kind side by side, as one tensor each; `sizes` cuts them into weights."""

    sizes: tuple[tuple[int, ...], ...]
    weight_N: Tensor
    exp_avg_N: Tensor
    exp_avg_sq_N: Tensor
    copy_N: Tensor
    gradients_N: dict[str, Tensor]

    def cut(self, tensor_N: Tensor) -> list[Tensor]:
        """A tensor for each weight, in the memory of the whole."""
        pieces = torch.split(tensor_N, [prod(size) for size in self.sizes])
        return [piece.view(size) for piece, size in zip(pieces, self.sizes, strict=True)]


def fill(*, layers: int) -> Memory:
    """Random numbers of the magnitudes of training: zeros switch fewer transistors."""
    parameters = part_parameters(FLAVORS["llama3"]["8B"], tuple(range(layers)), first=layers > 1, last=layers > 1)
    numel = sum(one.numel for one in parameters.values())

    def random(scale: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(numel, dtype=dtype, device="cuda").normal_(std=scale)

    return Memory(
        sizes=tuple(one.shape for one in parameters.values()),
        weight_N=random(2e-2),
        exp_avg_N=random(1e-4),
        exp_avg_sq_N=random(1e-4).square_(),
        copy_N=random(1.0, torch.bfloat16),
        gradients_N={"bfloat16": random(1e-3, torch.bfloat16), "float32": random(1e-3)},
    )


def milliseconds(work: Callable[[], object]) -> Row:
    """Median on the GPU of calls in a row, and of the CPU to start one on an idle GPU; without the first call."""
    work()
    cpu_ms: list[float] = []
    for _ in range(3):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        work()
        cpu_ms.append((time.perf_counter() - began_s) * 1e3)
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(COUNTED + 1)]  # type: ignore[no-untyped-call]
    for event in events:
        event.record()
        work()
    torch.cuda.synchronize()
    ms = statistics.median(before.elapsed_time(after) for before, after in pairwise(events))
    return {"ms": ms, "cpu_ms": statistics.median(cpu_ms)}


def ours(
    memory: Memory, name: str, *, launch: Launch = LAUNCH, whole: bool = False, module: ModuleType = adam_kernel
) -> Callable[[], None]:
    """An update by our kernel."""

    def cut(tensor_N: Tensor) -> list[Tensor]:
        return [tensor_N] if whole else memory.cut(tensor_N)

    weights = cut(memory.weight_N)
    update: Callable[..., None] = fused_adam if module is adam_kernel else module.fused_adam
    values: Row = {
        "weights": weights,
        "gradients": cut(memory.gradients_N[name]),
        "exp_avgs": cut(memory.exp_avg_N),
        "exp_avg_sqs": cut(memory.exp_avg_sq_N),
        "copies": cut(memory.copy_N),
        "steps": [torch.full((), 10.0, device="cuda") for _ in weights],
        "divisor": torch.ones((), device="cuda"),
        "bad": torch.zeros((), device="cuda"),
    }
    return lambda: update(**values, **SETTINGS, decoupled=True, launch=launch)


def torchs(memory: Memory, name: str) -> Callable[[], None]:
    """An update by torch's fused kernel: of gradients made float32, and copies made afterwards."""
    weights, copies = memory.cut(memory.weight_N), memory.cut(memory.copy_N)
    gradients = memory.cut(memory.gradients_N[name])
    exp_avgs, exp_avg_sqs = memory.cut(memory.exp_avg_N), memory.cut(memory.exp_avg_sq_N)
    steps = [torch.full((), 10.0, device="cuda") for _ in weights]
    scalars: Row = {"grad_scale": torch.ones((), device="cuda"), "found_inf": torch.zeros((), device="cuda")}

    @torch.no_grad()
    def work() -> None:
        own = [gradient.float() for gradient in gradients]
        adam(
            weights, own, exp_avgs, exp_avg_sqs, [], steps, foreach=False, fused=True, amsgrad=False, maximize=False,
            decoupled_weight_decay=True, **SETTINGS, **scalars,
        )  # fmt: skip
        torch._foreach_copy_(copies, weights)

    return work


@triton.jit  # type: ignore[untyped-decorator]
def _streams(weight_N, gradient_N, exp_avg_N, exp_avg_sq_N, copy_N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at_B = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gradient = tl.load(gradient_N + at_B, eviction_policy="evict_first").to(tl.float32)
    weight = tl.load(weight_N + at_B, eviction_policy="evict_first") + gradient
    exp_avg = tl.load(exp_avg_N + at_B, eviction_policy="evict_first") + gradient
    exp_avg_sq = tl.load(exp_avg_sq_N + at_B, eviction_policy="evict_first") + gradient
    tl.store(weight_N + at_B, weight, eviction_policy="evict_first")
    tl.store(exp_avg_N + at_B, exp_avg, eviction_policy="evict_first")
    tl.store(exp_avg_sq_N + at_B, exp_avg_sq, eviction_policy="evict_first")
    tl.store(copy_N + at_B, weight, eviction_policy="evict_first")


def streams(memory: Memory, name: str) -> Callable[[], object]:
    """The bytes of an update, without its arithmetic."""
    tensors = (memory.weight_N, memory.gradients_N[name], memory.exp_avg_N, memory.exp_avg_sq_N, memory.copy_N)
    programs, left = divmod(memory.weight_N.numel(), LAUNCH.block)
    assert not left, "weights of Llama 3 are whole blocks"
    return lambda: _streams[(programs,)](*tensors, BLOCK=LAUNCH.block, num_warps=LAUNCH.warps)


def approximate(folder: Path) -> ModuleType:
    """The kernel's module with division and root in two units of the last place instead of half a one."""
    text = Path(adam_kernel.__file__).read_text("utf-8")
    path = folder / "approximate_adam.py"
    path.write_text(text.replace("tl.div_rn(", "tl.fdiv(").replace("tl.sqrt_rn(", "tl.sqrt("), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(memory: Memory, name: str, rough: ModuleType) -> Iterator[Row]:
    """All that is timed for gradients in one precision; what has no meaning as an update comes last."""
    yield {"what": "torch"} | milliseconds(torchs(memory, name))
    for launch in LAUNCHES:
        yield {"what": "kernel", **launch._asdict()} | milliseconds(ours(memory, name, launch=launch))
    yield {"what": "one weight"} | milliseconds(ours(memory, name, whole=True))
    yield {"what": "approximate"} | milliseconds(ours(memory, name, module=rough))
    yield {"what": "streams"} | milliseconds(streams(memory, name))


def measure(memory: Memory) -> Row:
    """Rows for both precisions of gradients, and the best launch of each."""
    found: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        rough = approximate(Path(folder))
        for name, gradient_N in memory.gradients_N.items():
            needed = memory.weight_N.numel() * (6 * 4 + gradient_N.itemsize + memory.copy_N.itemsize)
            some = [row | {"tb_per_s": needed / row["ms"] / 1e9} for row in rows(memory, name, rough)]
            best = min((row for row in some if row["what"] == "kernel"), key=lambda row: float(row["ms"]))
            found[name] = {"bytes": needed, "rows": some, "best": best, "times_as_fast": some[0]["ms"] / best["ms"]}
    return found


def main() -> None:
    """Times all, prints a line for each row and the whole as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(0)
    memory = fill(layers=1 if asked.small else 16)
    about: Row = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "gpu": torch.cuda.get_device_name()}
    about |= {"torch": torch.__version__, "triton": triton.__version__, "elements": memory.weight_N.numel()}
    results = {"about": about} | measure(memory)
    text = json.dumps(results, indent=1)
    if asked.output:
        asked.output.write_text(text + "\n", "utf-8")
    for name in memory.gradients_N:
        for row in results[name]["rows"]:
            print(name, json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))
        print(name, "best", results[name]["best"], f"{results[name]['times_as_fast']:.3f} times as fast as torch")


if __name__ == "__main__":
    main()
