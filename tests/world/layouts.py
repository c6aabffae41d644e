"""Layouts that tests compare, as arguments of `tiny`, and the rows that a rank of them reads."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from synthetic import Rows

from engine.planner.plan import Plan

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


def tensor_layout(tp: int, *, replicas: int = 1, shards: int = 1, **values: Any) -> dict[str, Any]:
    """Arguments of `tiny` for tensor parallel with data parallel around it."""
    degrees = {
        "parallelism__tensor_parallel_degree": tp,
        "parallelism__data_parallel_replicate_degree": replicas,
        "parallelism__data_parallel_shard_degree": shards,
        "training__local_batch_size": 8 // (replicas * shards),
    }
    return {"processes": tp * replicas * shards, **degrees, **values}


def tensor_rows(config: Any, resolved: Plan) -> Rows:
    """The rows of this rank: those of one tensor-parallel group read the same."""
    return Rows(config, resolved, data_rank=dist.get_rank() // resolved.mesh.tp)
