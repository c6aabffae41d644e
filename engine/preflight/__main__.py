"""`python -m engine.preflight RUN_FOLDER`: one rank of a preflight, as torchrun starts it.

Knows the parts, their order and their deadlines. Rank 0 judges, and the first rank of each node leaves the verdict in
the run folder. Exits 0 where all was measured, whatever it came to, and 1 where a rank failed or was not heard.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from engine.parent import end_with_parent, has_torchrun

if __name__ == "__main__" and has_torchrun():
    end_with_parent()

from torch import device as Device
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.rendezvous import rendezvous

from engine.config import Config
from engine.errors import EXIT_CONFIG, EXIT_OK, EXIT_RUN_FAILED
from engine.hardware import Cluster, resolve_cluster
from engine.leave import leave_after
from engine.parallel.mesh import local_device
from engine.preflight import measuring
from engine.preflight.judging import FILE, Link, Measured, judge
from engine.preflight.parts import TELL_S, Parts
from engine.preflight.relay import Lost, Relay, nodes_of
from engine.preflight.rings import Round, rounds
from engine.rank_links import link_logs
from engine.report import gpu_of
from engine.sources import load

# What each part may take; those that are well take a few seconds. Ranks begin at different times, and a first use of
# CUDA or NCCL takes some.
START_S, DEVICE_S, PRODUCTS_S, MEMORY_S, LINK_S = 120.0, 60.0, 25.0, 15.0, 20.0


@record
def main() -> int:
    """Measures; returns the exit code."""
    if len(sys.argv) != 2:
        print("usage: python -m engine.preflight RUN_FOLDER", file=sys.stderr)
        return EXIT_CONFIG
    # As in the run that comes after it (engine.__main__).
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    run, began_s = Path(sys.argv[1]), time.monotonic()
    link_logs(run / "preflight" / "logs")
    config = load(run / "config.toml", environ={}).config
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=START_S)))
    relay = Relay(PrefixStore("preflight", store), rank, world_size)
    parts = Parts(relay)
    try:
        found = _measure(parts, config)
        text = _tell(relay, run, "" if found is None else json.dumps(judge(found(time.monotonic() - began_s))))
    except Lost as lost:
        print(lost, file=sys.stderr)
        return EXIT_RUN_FAILED
    return EXIT_RUN_FAILED if json.loads(text)["failed"] else EXIT_OK


def _measure(parts: Parts, config: Config) -> Any:
    """Does all parts until one fails; on rank 0 gives what makes a whole of them, once the seconds are known."""
    cluster = resolve_cluster(config.cluster)
    device_type = "cpu" if cluster.gpu.name == "cpu" else "cuda"
    layout: list[Round] = []
    if parts.do("start", _place, START_S):
        layout = _layout(parts)
        if parts.do("device", partial(_first_use, device_type), DEVICE_S):
            _parts(parts, config, layout, _device(device_type))
    return partial(_whole, parts, cluster, layout, device_type) if parts.relay.rank == 0 else None


def _device(device_type: str) -> Device:
    return Device("cpu") if device_type == "cpu" else Device(device_type, int(os.environ["LOCAL_RANK"]))


def _place() -> Mapping[str, Any]:
    """Where this rank is."""
    return {
        "host": socket.gethostname(),
        "node": int(os.environ.get("GROUP_RANK", "0")),
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "pid": os.getpid(),
    }


def _first_use(device_type: str) -> Mapping[str, Any]:
    """The device of this rank, once it has answered."""
    device = local_device(device_type)
    measuring.wake(device)
    return {"gpu": gpu_of(device)}


def _layout(parts: Parts) -> list[Round]:
    """The rounds of exchanges, which rank 0 alone can tell: it knows where all ranks are."""
    if parts.relay.rank == 0:
        nodes = nodes_of(parts.found["start"])
        parts.relay.say("nodes", json.dumps(nodes))
    else:
        nodes = json.loads(parts.relay.hear("nodes", TELL_S))
    return list(rounds(nodes))


def _parts(parts: Parts, config: Config, layout: list[Round], device: Device) -> None:
    """What is measured, until a part fails."""
    float8 = config.quantize.dense.float8
    multiply = partial(measuring.products, device, float8=float8.enable and not float8.emulate)
    if not parts.do("products", multiply, PRODUCTS_S):
        return
    if not parts.do("memory", partial(measuring.memory, device), MEMORY_S):
        return
    # A client of its own: one that waits for a rank that is lost lets nobody else talk.
    store = PrefixStore("preflight", _another_client())
    for each in layout:
        group = each.group_of(parts.relay.rank)
        exchange = partial(measuring.all_reduce, store, group or (), parts.relay.rank, device)
        if not parts.do(each.name, exchange if group else dict, LINK_S, groups=each.groups):
            return


def _another_client() -> TCPStore:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LINK_S))


def _whole(parts: Parts, cluster: Cluster, layout: list[Round], device_type: str, seconds: float) -> Measured:
    """What all ranks handed in, by name."""
    rates: dict[str, dict[int, float]] = {}
    devices = parts.found.get("device", {})
    for part in ("products", "memory"):
        for rank, found in parts.found.get(part, {}).items():
            for name, value in found.items():
                if name != "failed":
                    rates.setdefault(name, {})[rank] = value
    links = [
        Link(
            kind=each.kind, ranks=group, gbyte_per_s=min(parts.found[each.name][rank]["gbyte_per_s"] for rank in group)
        )
        for each in layout
        for group in each.groups
        if all("gbyte_per_s" in parts.found.get(each.name, {}).get(rank, {}) for rank in group)
    ]
    return Measured(
        cluster=cluster,
        world_size=parts.relay.world_size,
        places={
            rank: {**found, "gpu": devices.get(rank, {}).get("gpu")}
            for rank, found in parts.found["start"].items()
            if "failed" not in found
        },
        rates=rates,
        links=links,
        failed=parts.failed,
        reduced_bytes=measuring.sizes_of(Device(device_type)).reduced_bytes,
        seconds=seconds,
    )


def _tell(relay: Relay, run: Path, text: str) -> str:
    """Hands rank 0's verdict to all ranks, and leaves it in the run folder of each node before any rank of it ends."""
    node = f"written {os.environ.get('GROUP_RANK', '0')}"
    if relay.rank == 0:
        relay.say("verdict", text)
    else:
        text = relay.hear("verdict", TELL_S)
    if os.environ["LOCAL_RANK"] == "0":
        partial_file = run / f".{FILE}.{os.getpid()}"
        partial_file.write_text(text + "\n", "utf-8")
        partial_file.replace(run / FILE)
        relay.say(node, "yes")
    else:
        relay.hear(node, TELL_S)
    return text


if __name__ == "__main__":
    leave_after(main)
