"""Seconds of NCCL's collectives among the GPUs of this machine, alone and beside matrix products.

`python tests/bench/bench_collectives.py [--output FILE] [--tiny]` runs a process a GPU (two with gloo where there is
no GPU, to see that it runs) and times each collective over message sizes. `bytes` are those of the whole tensor: what
all ranks hold after an all-gather, before a reduce-scatter, or what a rank sends in all. Beside products of a layer
of the 8B model, each row says how much longer both take. Needs two GPUs and about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from engine.measure import once_s

Row: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among its like."""

    rank: int
    world: int
    device: torch.device
    tiny: bool

    def seconds(self, work: Work, *, least_s: float = 0.02) -> float:
        """Median of the mean time of calls in a row; the same number of calls on every rank."""
        for _ in range(3):
            work()
        first_s = self._of(work, 2)
        calls = torch.tensor(max(2, min(200, round(least_s / max(first_s, 1e-6)))), device=self.device)
        dist.broadcast(calls, src=0)
        return statistics.median(self._of(work, int(calls)) for _ in range(3))

    def _of(self, work: Work, calls: int) -> float:
        dist.barrier()
        return once_s(work, calls=calls)


def works(place: Place, bytes_: int, dtype: torch.dtype) -> Iterator[tuple[str, Work]]:
    """Every collective on `bytes_` of a dtype."""
    n = bytes_ // dtype.itemsize // place.world * place.world
    whole, piece = (torch.randn(size, device=place.device).to(dtype) for size in (n, n // place.world))
    other = torch.empty_like(whole)
    yield "all_gather", partial(dist.all_gather_into_tensor, whole, piece)
    yield "reduce_scatter", partial(dist.reduce_scatter_tensor, piece, whole)
    yield "all_reduce", partial(dist.all_reduce, whole)
    if place.device.type == "cuda":
        yield "reduce_scatter mean", partial(dist.reduce_scatter_tensor, piece, whole, op=dist.ReduceOp.AVG)
        yield "all_to_all", partial(dist.all_to_all_single, other, whole)
    yield "send", partial(_send, place, whole)
    yield "exchange", partial(_exchange, place, whole, other)


def _send(place: Place, whole: Tensor) -> None:
    """From rank 0 to rank 1."""
    if place.rank == 0:
        dist.send(whole, 1)
    elif place.rank == 1:
        dist.recv(whole, 0)


def _exchange(place: Place, whole: Tensor, other: Tensor) -> None:
    """To the next rank and from the one before, at once, as a ring does."""
    after, before = (place.rank + 1) % place.world, (place.rank - 1) % place.world
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, whole, after), dist.P2POp(dist.irecv, other, before)]
    ):
        request.wait()


def alone(place: Place) -> Iterator[Row]:
    """Each collective with nothing beside it."""
    for dtype in (torch.bfloat16, torch.float32):
        for kib in (64, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20):
            if place.tiny and kib > 256:
                continue
            for name, work in works(place, kib << 10, dtype):
                s = place.seconds(work)
                yield {"collective": name, "dtype": str(dtype), "bytes": kib << 10, "s": s}


def beside(place: Place) -> Iterator[Row]:
    """Collectives on one stream and products on another: how long each takes beside the other, and alone."""
    x, weight = (torch.randn(*size, device=place.device).bfloat16() for size in ((8192, 4096), (4096, 14336)))
    product = partial(torch.mm, x, weight)
    for mib in (4, 32, 128, 512):
        for dtype in (torch.bfloat16, torch.float32):
            for name, work in works(place, mib << 20, dtype):
                if name in ("all_gather", "reduce_scatter", "all_reduce", "exchange"):
                    yield {"collective": name, "dtype": str(dtype), "bytes": mib << 20} | _both(place, work, product)


def _both(place: Place, work: Work, product: Work) -> Row:
    """Both at once; `products_covered` says that products went on until the last collective was done."""
    alone_s, product_s = place.seconds(work), place.seconds(product)
    counts = torch.tensor([max(4, round(0.04 / alone_s)), max(8, round(0.3 / product_s))], device=place.device)
    dist.broadcast(counts, src=0)
    calls, products = (int(count) for count in counts)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    dist.barrier()
    torch.cuda.synchronize()
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(products)]
    first, began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with torch.cuda.stream(streams[0]):
        first.record()
        for event in ends:
            product()
            event.record()
    with torch.cuda.stream(streams[1]):
        streams[1].wait_event(ends[1])
        began.record()
        for _ in range(calls):
            work()
        ended.record()
    torch.cuda.synchronize()
    both_s = began.elapsed_time(ended) / 1000
    done = [event for event in ends if 0 < began.elapsed_time(event) / 1000 < both_s]
    spent_s = began.elapsed_time(done[-1]) / 1000 if done else None
    return {
        "alone_s": alone_s, "beside_s": both_s / calls, "product_alone_s": product_s,
        "product_beside_s": spent_s and spent_s / len(done), "products_covered": len(done) < len(ends) - 2,
    }  # fmt: skip


def of_rank(rank: int, world: int, meeting: str, output: Path | None, tiny: bool) -> None:
    """Takes part in all of it; rank 0 writes."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    where = {"init_method": f"file://{meeting}", "rank": rank, "world_size": world}
    dist.init_process_group("nccl" if on_gpu else "gloo", **where, device_id=device if on_gpu else None)
    torch.manual_seed(rank)
    place = Place(rank=rank, world=world, device=device, tiny=tiny)
    about: Row = {"torch": torch.__version__, "gpus": world, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    if on_gpu:
        about |= {"gpu": torch.cuda.get_device_name(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        about |= {key: value for key, value in os.environ.items() if key.startswith("NCCL_")}
    results: Row = {"about": about, "alone": list(alone(place))}
    if on_gpu:
        results["beside"] = list(beside(place))
    if rank == 0 and output:
        output.write_text(text(results))
    dist.destroy_process_group()


def text(results: Row) -> str:
    """JSON with a row a line, in six digits."""
    parts = [f'"about": {json.dumps(results["about"])}']
    for name in results.keys() - {"about"}:
        short = [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in results[name]]
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in short) + "\n]")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    """Starts the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    world = torch.cuda.device_count() or 2
    if world < 2:
        sys.exit("this benchmark needs two GPUs")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, f"{folder}/meeting", asked.output, asked.tiny)
        torch.multiprocessing.spawn(of_rank, arguments, nprocs=world)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
