"""SimuMax's measured peaks of Megatron-LM 0.14 with Transformer Engine on eight B200, as configs.

Knows its dense rows: Llama 3 70B with 12 layers and 405B with 4. The rows state no data-parallel degree: it
is what the other axes leave of the GPUs. Does not know how a mixture of experts would read.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from tests.bench.published.case import Case

TABLE = Path(__file__).with_name("published.csv")


def cases() -> list[Case]:
    """Every dense row, in the order of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "SimuMax" in row["source"]]
    return [_case(number, row) for number, row in enumerate(rows, start=1)]


def _case(number: int, row: Mapping[str, str]) -> Case:
    flavor = row["model"].partition("(")[0].removeprefix("llama3-").upper()
    gpus, tp, pp, cp = (int(row[key]) for key in ("gpus", "tp", "pp", "cp"))
    seq_len, microbatch, batch = (int(row[key]) for key in ("seq", "mbs", "gbs"))
    data_ranks = gpus // (tp * pp * cp)
    return Case(
        id=f"simumax-{number}",
        stack="megatron",
        values={
            "cluster.gpu": "b200",
            "cluster.nodes": 1,
            "cluster.gpus_per_node": gpus,
            "model.name": "llama3",
            "model.flavor": flavor,
            "model.shape.n_layers": int(row["layers"]),
            "training.seq_len": seq_len,
            "training.local_batch_size": microbatch if pp == 1 else batch // data_ranks,
            "training.global_batch_size": batch,
            "training.mixed_precision_param": "bfloat16",
            "parallelism.data_parallel_shard_degree": data_ranks,
            "parallelism.tensor_parallel_degree": tp,
            "parallelism.context_parallel_degree": cp,
            "parallelism.pipeline_parallel_degree": pp,
            "parallelism.pipeline_parallel_microbatch_size": microbatch,
            "activation_checkpoint.mode": "none",
        },
        tokens_per_s_per_gpu=batch * seq_len / float(row["step_s"]) / gpus,
        memory_gib=float(row["mem_gib"]),
        memory_is="allocated",
        note=f"{row['model']} {seq_len} tokens, tp {tp} pp {pp} cp {cp}",
    )
