"""The data-parallel layouts that tests compare, as arguments of `tiny`."""

from __future__ import annotations

from typing import Any

LAYOUTS = {
    "replicate_2": (2, 2, 1),
    "replicate_4": (4, 4, 1),
    "fsdp_2": (2, 1, 2),
    "fsdp_4": (4, 1, 4),
    "hsdp_2x2": (4, 2, 2),
}


def layout(processes: int, replicas: int, shards: int, **values: Any) -> dict[str, Any]:
    """Arguments of `tiny` for a data-parallel layout."""
    degrees = {
        "parallelism__data_parallel_replicate_degree": replicas,
        "parallelism__data_parallel_shard_degree": shards,
    }
    return {"processes": processes, **degrees, **values}
