"""vTrain's runs of two GPT models on A100 clusters as configs.

Knows how a row of vtrain_a100.csv reads in titan's keys. The GPT's plain feed-forward of 4 x dim is a SwiGLU of
8/3 x dim, which has as many weights and FLOPs; full recomputation and 200 Gbit/s a GPU are those of the cluster.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.published.case import Case

TABLE = Path(__file__).with_name("vtrain_a100.csv")
_VOCABULARY = 51_200


def cases() -> list[Case]:
    """Every row, in the order of the table; `vtrain-18.4-N` and `vtrain-39.1-N` are the two groups."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [_case(number, row) for number, row in enumerate(csv.DictReader(file), 1)]


def groups() -> dict[str, list[Case]]:
    """The cases of one job each, by the size of its model in billions of parameters."""
    found: dict[str, list[Case]] = {}
    for case in cases():
        found.setdefault(case.id.split("-")[1], []).append(case)
    return found


def _case(number: int, row: Mapping[str, str]) -> Case:
    dim, heads, gpus = int(row["dim"]), int(row["n_heads"]), int(row["gpus"])
    batch, micro, dp, pp = (int(row[key]) for key in ("global_batch", "micro_batch", "dp", "pp"))
    tokens = batch * int(row["seq_len"])
    values: dict[str, Any] = {
        "cluster.gpu": "a100-80",
        "cluster.nodes": gpus // 8,
        "cluster.gpus_per_node": 8,
        "cluster.network_gbit_per_s_per_gpu": 200,
        "model.name": "llama2",
        "model.flavor": "7B",
        "model.shape.dim": dim,
        "model.shape.n_layers": int(row["n_layers"]),
        "model.shape.n_heads": heads,
        "model.shape.n_kv_heads": heads,
        "model.shape.ffn_dim": -(-8 * dim // (3 * 128)) * 128,
        "model.shape.vocab_size": _VOCABULARY,
        "training.seq_len": int(row["seq_len"]),
        "training.global_batch_size": batch,
        "training.local_batch_size": batch // dp if pp > 1 else micro,
        "parallelism.data_parallel_shard_degree": dp,
        "parallelism.tensor_parallel_degree": int(row["tp"]),
        "parallelism.pipeline_parallel_degree": pp,
        "activation_checkpoint.mode": "full",
    }
    if pp > 1:
        values["parallelism.pipeline_parallel_schedule"] = "1F1B"
        values["parallelism.pipeline_parallel_microbatch_size"] = micro
    return Case(
        id=f"vtrain-{row['params_b']}-{number}",
        stack="megatron",
        values=values,
        tokens_per_s_per_gpu=tokens / (float(row["iteration_ms"]) / 1000) / gpus,
        note=f"tp {row['tp']} dp {dp} pp {pp} microbatch {micro}",
    )
