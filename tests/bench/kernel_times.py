"""Where the GPU's time of a step goes, from a trace of torch's profiler: by kernel, and by kind of kernel.

Knows the events of a Chrome trace and how kernels are called. Does not know who was profiled.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")

_OF_LOSS = ("softmax", "nll_loss", "logsumexp", "embedding")
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nccl", ("nccl",)),
    ("optimizer and clipping", ("adam", "lpnorm", "multi_tensor_apply")),
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("copy", ("memcpy", "memset", "catarray", "copy_kernel", "copy_device_to_device", "chunk_cat", "sizes_copy")),
    ("matmul", ("gemm", "nvjet", "cutlass", "cublas", "splitk", "xmma")),
    ("loss and embedding", _OF_LOSS),
    ("elementwise, not compiled", ("elementwise", "reduce_kernel", "norm")),
)
"""Kinds of kernels by parts of their names, in lower case; the first that fits counts, and the rest is "other"."""
# The names of the compiler's kernels tell the operations that were fused, among them neighbours that are not in them.
OF_COMPILER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("triton_tem_fused_flex",)),
    ("matmul", ("triton_tem",)),
    ("loss and embedding", _OF_LOSS),
    ("elementwise, compiled", ("triton",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All calls of one name, a step."""

    name: str
    calls: float
    ms: float


def kind_of_kernel(name: str) -> str:
    """Which kind a kernel is of."""
    low = name.lower()
    kinds = OF_COMPILER if low.startswith("triton") else KINDS
    return next((kind for kind, parts in kinds if any(part in low for part in parts)), "other")


def kernels_of(trace: Path, *, steps: int, only_launched: bool = False) -> list[Kernel]:
    """Kernels and copies of a recording of so many steps, the dearest first; empty where it is of no GPU.

    `only_launched`: those alone whose launch was recorded too; what ran for the step before was launched before.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    called = {event["args"].get("correlation") for event in events if event.get("cat") in _CALLS}
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_DEVICE and (not only_launched or event["args"].get("correlation") in called):
            found[event["name"]].append(event["dur"] / 1000)
    kernels = [
        Kernel(name=name, calls=len(each_ms) / steps, ms=sum(each_ms) / steps) for name, each_ms in found.items()
    ]
    return sorted(kernels, key=lambda kernel: -kernel.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which the GPU did nothing, and what it did before and after."""

    ms: float
    before: str
    after: str


def gaps_of(trace: Path, *, least_ms: float = 0.02) -> tuple[float, float, list[Gap]]:
    """Milliseconds from the first kernel of a recording to the last, those of them that are idle, and the long gaps."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") in _ON_DEVICE]
    events.sort(key=lambda event: event["ts"])
    gaps: list[Gap] = []
    idle_ms = 0.0
    last = events[0] if events else None
    for event in events[1:]:
        assert last is not None, "there is a first one"
        gap_ms = (event["ts"] - last["ts"] - last["dur"]) / 1000
        idle_ms += max(0.0, gap_ms)
        if gap_ms >= least_ms:
            gaps.append(Gap(ms=gap_ms, before=last["name"], after=event["name"]))
        last = max(last, event, key=lambda one: one["ts"] + one["dur"])
    span_ms = 0.0 if last is None else (last["ts"] + last["dur"] - events[0]["ts"]) / 1000
    return span_ms, idle_ms, sorted(gaps, key=lambda gap: -gap.ms)


def by_kind(kernels: list[Kernel]) -> dict[str, float]:
    """Milliseconds of each kind a step, the dearest first, and their sum."""
    sums: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        sums[kind_of_kernel(kernel.name)] += kernel.ms
    return dict(sorted(sums.items(), key=lambda item: -item[1])) | {"sum": sum(sums.values())}


def table_of_gaps(trace: Path, top: int = 25) -> str:
    """How much of a recording is idle, and its longest gaps, for people."""
    span_ms, idle_ms, gaps = gaps_of(trace)
    lines = [f"{idle_ms:.2f} of {span_ms:.2f} ms idle between the first kernel and the last; the longest:"]
    lines += [f"{gap.ms:10.3f} ms  after {gap.before[:90]}\n{'':15}before {gap.after[:90]}" for gap in gaps[:top]]
    return "\n".join(lines) + "\n"


def table(kernels: list[Kernel], top: int = 40) -> str:
    """The sums by kind, and the dearest kernels, for people."""
    lines = [f"{ms:10.2f} ms  {kind}" for kind, ms in by_kind(kernels).items()]
    lines += ["", "   ms/step  calls/step  kind and name"]
    lines += [
        f"{kernel.ms:10.3f}{kernel.calls:12.1f}  {kind_of_kernel(kernel.name)}: {kernel.name[:160]}"
        for kernel in kernels[:top]
    ]
    return "\n".join(lines) + "\n"
