"""torchtitan's published runs as configs.

Knows how a row of torchtitan.csv reads in titan's keys. Does not know what a row cannot say: where neither
batch nor compile was stated (tt-b13) the row has the usual ones.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.published.case import Case

TABLE = Path(__file__).with_name("torchtitan.csv")
# Rows measured with weights and optimizer states in bfloat16, and one whose mixed precision was silently off.
_BFLOAT16, _FLOAT32_COMPUTE = frozenset({"h2-8", "h2-9", "h2-10"}), frozenset({"h2-11"})
_RECOMPUTE: Mapping[str, Mapping[str, Any]] = {
    "none": {"mode": "none"},
    "full": {"mode": "full"},
    "selective-op": {"mode": "selective", "selective_ac_option": "op"},
    "selective-layer2": {"mode": "selective", "selective_ac_option": 2},
}


def cases() -> list[Case]:
    """Every row, in the order of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [_case(row) for row in csv.DictReader(file)]


def _case(row: Mapping[str, str]) -> Case:
    failed = "OOM" in (row["tok_s_gpu"], row["mem_gib"])
    return Case(
        id=row["id"],
        stack="torchtitan",
        values=_layout(row) | _precision(row) | _activations(row),
        tokens_per_s_per_gpu=None if failed else _number(row["tok_s_gpu"]),
        memory_gib=None if failed else _number(row["mem_gib"]),
        ran_out_of_memory=failed,
        note=row["note"],
    )


def _layout(row: Mapping[str, str]) -> dict[str, Any]:
    name, flavor = row["model"].split("-")
    gpus, node = int(row["gpus"]), 4 if row["gpu"] == "gb200" else 8
    values: dict[str, Any] = {
        "cluster.gpu": row["gpu"],
        "cluster.nodes": -(-gpus // node),
        "cluster.gpus_per_node": min(gpus, node),
        "model.name": name,
        "model.flavor": flavor,
        "training.seq_len": int(row["seq_len"]),
        "training.local_batch_size": int(row["local_batch_size"]),
        "parallelism.data_parallel_replicate_degree": int(row["dp_replicate"]),
        "parallelism.data_parallel_shard_degree": int(row["dp_shard"]),
        "parallelism.tensor_parallel_degree": int(row["tp"]),
        "parallelism.enable_async_tensor_parallel": row["async_tp"] == "1",
        "parallelism.context_parallel_degree": int(row["cp"]),
        "parallelism.fsdp_reshard_after_forward": row["reshard"],
        "parallelism.pipeline_parallel_degree": int(row["pp"]),
    }
    if row["schedule"]:
        values["parallelism.pipeline_parallel_schedule"] = row["schedule"]
        values["parallelism.pipeline_parallel_microbatch_size"] = int(row["pp_microbatch_size"])
    return values


def _precision(row: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if row["float8"] == "mxfp8":
        values["quantize.dense.mx.enable"] = True
    elif row["float8"]:
        recipe, _, gathered = row["float8"].partition("+")
        values["quantize.dense.float8.enable"] = True
        values["quantize.dense.float8.recipe_name"] = recipe
        values["quantize.dense.float8.enable_fsdp_float8_all_gather"] = gathered == "fp8ag"
    if row["id"] in _BFLOAT16:
        values["training.dtype"] = "bfloat16"
    if row["id"] in _FLOAT32_COMPUTE:
        values["training.mixed_precision_param"] = "float32"
    return values


def _activations(row: Mapping[str, str]) -> dict[str, Any]:
    values = {f"activation_checkpoint.{key}": value for key, value in _RECOMPUTE[row["ac"]].items()}
    compiles = row["compile"] == "1"
    values["compile.enable"] = compiles
    if compiles:
        values["compile.components"] = ["model", "loss"] if row["loss"] == "compiled" else ["model"]
    if row["loss"].startswith("chunked-"):
        values["training.loss_chunks"] = int(row["loss"].removeprefix("chunked-"))
    return values


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
