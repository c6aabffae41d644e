"""`python -m engine.measure`: what torch is here and, with `rates`, what kernels and links of this machine sustain.

Knows how each rate is measured. Does not know what is enough, nor where a calibration is kept: it writes JSON, a line
at a time, to stdout. Rates are of one GPU, and without a GPU of the whole machine. Everything runs in a row until the
card is as warm as in training: the first second of products is a fifth faster than all that follow.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from engine.model.attention import attention_kernels

_collective = torch.ops._c10d_functional

Work: TypeAlias = Callable[[], object]

# A product as wide as those of large layers: on a CPU the widest of these that takes a tenth of a second at most.
_WIDTHS = (512, 1024, 2048, 4096, 8192)
_LONGEST_S = 0.1
_MEETING_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured on a kind of device: sizes that fill it, and for how long."""

    copied_bytes: int
    seq_len: int
    heads: int
    kv_heads: int
    gathered_bytes: int
    lasts_s: float


_ON_GPU = Sizes(copied_bytes=1 << 30, seq_len=8192, heads=32, kv_heads=8, gathered_bytes=256 << 20, lasts_s=2.5)
_ON_CPU = Sizes(copied_bytes=256 << 20, seq_len=1024, heads=8, kv_heads=2, gathered_bytes=32 << 20, lasts_s=0.25)


def seconds(work: Work, *, lasts_s: float) -> float:
    """Median seconds of one call over the second half of calls in a row that last so long."""
    work()
    _wait()
    times: list[float] = []
    began_s = time.perf_counter()
    while len(times) < 4 or time.perf_counter() - began_s < lasts_s:
        times.append(once_s(work, calls=10 if times and times[-1] < 0.01 else 1))
    return statistics.median(times[len(times) // 2 :])


def once_s(work: Work, *, calls: int) -> float:
    """Mean seconds of so many calls in a row, by events of the GPU where there is one."""
    if torch.cuda.is_available():
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        for _ in range(calls):
            work()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000 / calls
    began_s = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began_s) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def about() -> dict[str, Any]:
    """torch and what it sees here; `trouble` is what stands in the way of using its GPUs."""
    return {
        "torch": torch.__version__,
        "torchao": _version("torchao"),
        "cuda": torch.version.cuda,
        "nccl": _nccl(),
        "gloo": dist.is_gloo_available(),
        "gpus": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "trouble": _trouble(),
    }


def _nccl() -> str | None:
    if not dist.is_nccl_available():
        return None
    parts: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, parts))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _trouble() -> str | None:
    """What the first use of a GPU says where it fails."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built for the CPU"
    try:
        torch.zeros(1, device="cuda").add_(1).item()
    except (RuntimeError, AssertionError) as refused:
        return str(refused).strip().splitlines()[0]
    return None


def rates(device: torch.device, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Each rate by its name in a calibration (calibration.RATES), as soon as it is known."""
    yield "hbm_tbyte_per_s", copied_tbyte_per_s(device, sizes.copied_bytes, lasts_s=sizes.lasts_s / 4)
    bf16 = partial(product, device=device, dtype=torch.bfloat16)
    yield "bf16_tflops", _product_tflops(bf16, device, lasts_s=sizes.lasts_s)
    fp32 = partial(product, device=device, dtype=torch.float32)
    yield "fp32_tflops", _product_tflops(fp32, device, lasts_s=sizes.lasts_s / 2)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        yield "fp8_tflops", _product_tflops(partial(float8_product, device=device), device, lasts_s=sizes.lasts_s)
    yield "attention_tflops", _attention_tflops(device, sizes)


def copied_tbyte_per_s(device: torch.device, copied_bytes: int, *, lasts_s: float) -> float:
    """TB/s of a copy within a device's memory: what is read and what is written."""
    source = torch.randn(copied_bytes // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2e-12 * copied_bytes / seconds(partial(target.copy_, source), lasts_s=lasts_s)


def _product_tflops(make: Callable[[int], Work], device: torch.device, *, lasts_s: float) -> float:
    """TFLOP/s of a product of that many rows, columns and terms."""
    width = wide_enough(make, device)
    return 2e-12 * width**3 / seconds(make(width), lasts_s=lasts_s)


def wide_enough(make: Callable[[int], Work], device: torch.device) -> int:
    """The width to measure products at: the widest on a GPU, on a CPU one that does not take too long."""
    if device.type == "cuda":
        return _WIDTHS[-1]
    return next(wide for wide in _WIDTHS if _is_wide_enough(make(wide), wide))


def _is_wide_enough(work: Work, width: int) -> bool:
    """Whether the next width, of eight times the work, would take too long, or there is none."""
    work()
    return min(once_s(work, calls=1) for _ in range(3)) > _LONGEST_S / 8 or width == _WIDTHS[-1]


def product(width: int, *, device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    """A product of so many rows, columns and terms."""
    x, weight = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    return partial(linear, x, weight)


def float8_product(width: int, *, device: torch.device) -> Callable[[], Tensor]:
    """The same in float8, with one scale for each side."""
    x, weight = (torch.randn(width, width, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=device)
    options: dict[str, Any] = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    return partial(torch._scaled_mm, x, weight.t(), **options)


def _attention_tflops(device: torch.device, sizes: Sizes) -> float:
    """TFLOP/s of causal attention forward and backward: two products and five of half a square each."""
    width = 128
    q, k, v = (
        torch.randn(1, sizes.seq_len, heads, width, device=device, dtype=torch.bfloat16)
        .requires_grad_()
        .transpose(1, 2)
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    )
    given = torch.randn_like(q)

    def both() -> tuple[Tensor, ...]:
        with attention_kernels(device.type):
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return torch.autograd.grad(out, (q, k, v), given)

    flops = 7 * sizes.seq_len**2 * sizes.heads * width
    return 1e-12 * flops / seconds(both, lasts_s=sizes.lasts_s)


def link_gbyte_per_s(world: int, sizes: Sizes, *, on_gpu: bool) -> float:
    """GB/s that each process sends at once in a ring over all GPUs of this machine, or over `world` processes.

    Of processes on a CPU it is the sum of all, which they share.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting, told = Path(folder) / "meeting", Path(folder) / "told"
        arguments = (world, str(meeting), str(told), sizes, on_gpu)
        processes.spawn(_gather, arguments, nprocs=world)  # type: ignore[attr-defined, no-untyped-call]
        gathered_s = float(told.read_text("utf-8"))
    sent_bytes = sizes.gathered_bytes * (world - 1) / world
    return 1e-9 * sent_bytes / gathered_s * (1 if on_gpu else world)


def _gather(rank: int, world: int, meeting: str, told: str, sizes: Sizes, on_gpu: bool) -> None:
    """One process of the ring; the first writes the seconds of an all-gather."""
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_MEETING_S),
        device_id=device if on_gpu else None,
    )
    found_s = gathered_s(device, sizes.gathered_bytes)
    if rank == 0:
        Path(told).write_text(str(found_s), "utf-8")
    dist.destroy_process_group()


def gathered_s(device: torch.device, whole_bytes: int) -> float:
    """Median seconds of an all-gather of so many bytes in bfloat16 among the processes of the default group."""
    assert dist.group.WORLD is not None, "the default group is made before anything is measured in it"
    world, group = dist.get_world_size(), dist.group.WORLD.group_name
    piece = torch.ones(whole_bytes // 2 // world, device=device, dtype=torch.bfloat16)

    def gather() -> None:
        _collective.wait_tensor(_collective.all_gather_into_tensor(piece, world, group))

    times: list[float] = []
    for _ in range(12):
        dist.barrier()
        _wait()
        times.append(once_s(gather, calls=5 if device.type == "cuda" else 1))
    return statistics.median(times[4:])


def measure() -> Iterator[dict[str, Any]]:
    """All rates of this machine, a line each; what a link refuses is told and left out."""
    on_gpu = torch.cuda.is_available()
    sizes = _ON_GPU if on_gpu else _ON_CPU
    torch.manual_seed(0)
    for name, value in rates(torch.device("cuda" if on_gpu else "cpu"), sizes):
        yield {"rate": name, "value": value}
    if on_gpu:
        torch.cuda.empty_cache()
    world = torch.cuda.device_count() if on_gpu else min(2, torch.get_num_threads())
    if world > 1:
        try:
            yield {"rate": "nvlink_gbyte_per_s", "value": link_gbyte_per_s(world, sizes, on_gpu=on_gpu)}
        except (RuntimeError, OSError) as refused:
            yield {"trouble": str(refused).strip().splitlines()[-1]}


def main(words: Sequence[str]) -> None:
    """Writes what was asked for: what torch is here, and the rates."""
    lines: Iterator[dict[str, Any]] = measure() if "rates" in words else iter(())
    print(json.dumps(about()), flush=True)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
