"""Runs under torchrun, one process a GPU (or on the CPU): the rows of tests/world/parity.py that take this many.

`layouts.py FOLDER [DEVICE]`. Alone it writes what one process reaches to FOLDER; with more processes rank 0 prints a
line for each row: how far it is from that. Rows that fail are told and the rest goes on where they can.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# torchrun starts this file by its path: the rows are found where pytest finds them.
sys.path.insert(0, str(Path(__file__).parents[1] / "world"))

from parity import LAYOUTS, ONE, OPTIMIZERS, distance, run

from engine.parallel.mesh import local_device

# Heads that the fast kernels take.
SIZES: dict[str, Any] = {"model__shape__dim": 256, "model__shape__ffn_dim": 512, "training__seq_len": 128}


def main() -> None:
    """Writes or compares."""
    folder, kind = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "h200"
    device = local_device("cpu" if kind == "cpu" else "cuda")
    bound = None if kind == "cpu" else device
    dist.init_process_group("gloo" if kind == "cpu" else "nccl", device_id=bound, timeout=timedelta(seconds=100))
    values = SIZES | {"cluster__gpu": kind}
    count = dist.get_world_size()
    rows = [ONE] if count == 1 else [row for row in LAYOUTS if row.processes == count]
    for row in rows:
        for optimizer in OPTIMIZERS:
            began_s = time.perf_counter()
            report: dict[str, Any] = {"layout": row.name, "optimizer": optimizer}
            try:
                report |= compare(row.arguments(optimizer) | values, folder / optimizer, keep=count == 1)
            except Exception:  # noqa: BLE001 - told, and the next row is tried
                report["error"] = traceback.format_exc()[-1500:]
            report["seconds"] = round(time.perf_counter() - began_s, 1)
            if dist.get_rank() == 0:
                print(json.dumps(report), flush=True)
            if "error" in report:
                print(f"rank {dist.get_rank()}: {report['error']}", file=sys.stderr, flush=True)


def compare(arguments: dict[str, Any], place: Path, *, keep: bool) -> dict[str, Any]:
    """One row on this rank, joined over ranks; with `keep` the figures of one process are written instead."""
    mine = run(arguments, f"{place}.pt", keep)
    if keep:
        torch.save(mine, f"{place}-figures.pt")
        return {}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    found = distance(everyone, torch.load(f"{place}-figures.pt"))
    return {
        "loss": found.loss,
        "norm": found.norm,
        "before": found.before,
        "after": found.after,
        "share": found.largest_share,
        "names": len(found.names),
    }


if __name__ == "__main__":
    main()
