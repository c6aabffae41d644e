"""What this rank's GPU and its links reach; the private names of torch about process groups stand here, tried on 2.11
and 2.13.

Knows how each rate is measured. Does not know what is enough (judging), nor how ranks keep in step (relay). Groups are
made one by one, of the ranks that measure together only, so that a link that is dead keeps nobody else waiting.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine import measure
from engine.preflight import assumed

# A group's own patience: longer than any part has, whose deadline names the rank first.
_PATIENCE = timedelta(seconds=300)
_ROUNDS, _WARM = 5, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured on a kind of device, and for how long."""

    copied_bytes: int
    from_host_bytes: int
    reduced_bytes: int
    products_s: float
    copies_s: float
    calls: int


# Products are at the pace of training after some two seconds (engine.measure). 256 MiB are past the half of what any
# network reaches, and a round of ten takes half a second at 10 GB/s.
ON_GPU = Sizes(
    copied_bytes=1 << 30, from_host_bytes=256 << 20, reduced_bytes=256 << 20, products_s=2.5, copies_s=0.6, calls=10
)
ON_CPU = Sizes(copied_bytes=64 << 20, from_host_bytes=0, reduced_bytes=8 << 20, products_s=0.5, copies_s=0.25, calls=2)


def sizes_of(device: torch.device) -> Sizes:
    """Sizes for a kind of device."""
    return ON_GPU if device.type == "cuda" else ON_CPU


class WrongResult(RuntimeError):
    """A device or a link computes wrongly."""


def wake(device: torch.device) -> None:
    """Uses a device for the first time."""
    torch.ones(1, device=device).add_(1).item()


def products(device: torch.device, *, float8: bool) -> dict[str, float]:
    """TFLOP/s of products; WrongResult where the same product differs from itself."""
    sizes = sizes_of(device)
    makers: dict[str, Callable[[int], Callable[[], Tensor]]] = {
        assumed.BF16: partial(measure.product, device=device, dtype=torch.bfloat16)
    }
    if float8 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        makers[assumed.FP8] = partial(measure.float8_product, device=device)
    found: dict[str, float] = {}
    for name, make in makers.items():
        width = measure.wide_enough(make, device)
        work = make(width)
        first = work()
        found[name] = 2e-12 * width**3 / measure.seconds(work, lasts_s=sizes.products_s)
        if not torch.equal(first, work()):
            raise WrongResult("the same product of matrices comes out differently when it is repeated")
    return found


def memory(device: torch.device) -> dict[str, float]:
    """TB/s of the device's memory, and GB/s of what comes from the host's where that is another."""
    sizes = sizes_of(device)
    found = {assumed.MEMORY: measure.copied_tbyte_per_s(device, sizes.copied_bytes, lasts_s=sizes.copies_s)}
    if device.type == "cuda":
        source = torch.empty(sizes.from_host_bytes, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(source, device=device)
        copy = partial(target.copy_, source, non_blocking=True)
        found[assumed.HOST] = 1e-9 * sizes.from_host_bytes / measure.seconds(copy, lasts_s=sizes.copies_s)
    return found


def all_reduce(store: Any, ranks: Sequence[int], rank: int, device: torch.device) -> dict[str, float]:
    """GB/s that this rank sends in all-reduces among some ranks; WrongResult where a sum is wrong."""
    sizes = sizes_of(device)
    group = _group(store, ranks, rank, device)
    # bfloat16 counts to 256, so the sum is tried in float32.
    ones = torch.ones(1 << 16, device=device)
    _reduce(group, ones)
    if not torch.equal(ones, torch.full_like(ones, len(ranks))):
        raise WrongResult(f"ones summed over {len(ranks)} ranks are not {len(ranks)}")
    tensor = torch.zeros(sizes.reduced_bytes // 2, device=device, dtype=torch.bfloat16)
    work = partial(_reduce, group, tensor)
    for _ in range(_WARM):
        work()
    times = [measure.once_s(work, calls=sizes.calls) for _ in range(_ROUNDS)]
    rate = assumed.sent_gbyte_per_s(len(ranks), sizes.reduced_bytes, statistics.median(times))
    return {"gbyte_per_s": rate}


def _reduce(group: Any, tensor: Tensor) -> None:
    group.allreduce([tensor]).wait()


def _group(store: Any, ranks: Sequence[int], rank: int, device: torch.device) -> Any:
    """A process group of these ranks alone, which meet in the store under their own name."""
    name = "-".join(map(str, ranks))
    own = dist.PrefixStore(f"group/{name}", store)  # type: ignore[attr-defined]
    place = list(ranks).index(rank)
    if device.type == "cpu":
        return dist.ProcessGroupGloo(own, place, len(ranks), _PATIENCE)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _PATIENCE
    return dist.ProcessGroupNCCL(own, place, len(ranks), options)
