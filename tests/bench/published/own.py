"""This project's own runs on H200, kept in tests/bench, as configs.

Knows which flags each row of bench_parity and bench_data_parallel had over preset fsdp-8b. A row that ran several times
counts once, with the mean of its speeds: 2 % lie between them. Rows of bench_holdout bring their flags along.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from engine.keys import value_of
from engine.sources import load, split_flags
from tests.bench.published.case import Case

_FOLDER = Path(__file__).parents[1]
_EAGER = {"compile.enable": False}
_FLOAT8, _MX, _RECOMPUTE = "quantize.dense.float8", "quantize.dense.mx", "activation_checkpoint.mode"
# Eight layers on one GPU.
_PARITY: Mapping[str, Mapping[str, Any]] = {
    "reference: 1 GPU, 1 sequences": {},
    "bf16, eager": _EAGER,
    "fp32, eager": _EAGER | {"training.mixed_precision_param": "float32"},
    "selective op": {_RECOMPUTE: "selective"},
    "full recompute": {_RECOMPUTE: "full"},
    "memory budget 0.5": {_RECOMPUTE: "memory_budget"},
    "eager, selective op": _EAGER | {_RECOMPUTE: "selective"},
    "eager, full recompute": _EAGER | {_RECOMPUTE: "full"},
    "8 loss chunks": {"training.loss_chunks": 8},
    "float8 tensorwise": {f"{_FLOAT8}.enable": True},
    "float8 rowwise": {f"{_FLOAT8}.enable": True, f"{_FLOAT8}.recipe_name": "rowwise"},
    "MXFP8 emulated": {f"{_MX}.enable": True, f"{_MX}.recipe_name": "mxfp8_emulated"},
}
_SIXTEEN, _TWO_GPUS = {"model.shape.n_layers": 16}, {"cluster.gpus_per_node": 2}
_DATA_PARALLEL: Mapping[str, Mapping[str, Any]] = {
    "8B, FSDP 2, compile": _TWO_GPUS,
    "8B, FSDP 2, compile, never reshard": _TWO_GPUS | {"parallelism.fsdp_reshard_after_forward": "never"},
    "8B, FSDP 2, eager": _TWO_GPUS | _EAGER,
    "16 layers, 1 GPU, compile": _SIXTEEN,
    "16 layers, 1 GPU, eager": _SIXTEEN | _EAGER,
    "16 layers, replicate 2, compile": _SIXTEEN
    | _TWO_GPUS
    | {"parallelism.data_parallel_replicate_degree": 2, "parallelism.data_parallel_shard_degree": 1},
}


def cases() -> list[Case]:
    """Every row by its name."""
    parity = json.loads((_FOLDER / "parity_h200.json").read_text("utf-8"))["runs"]
    data_parallel = json.loads((_FOLDER / "data_parallel_h200x2.json").read_text("utf-8"))["rows"]
    small = [row for run in parity for row in run["rows"]]
    return [
        *(_case(name, {"model.shape.n_layers": 8} | values, small) for name, values in _PARITY.items()),
        *(_case(name, values, data_parallel) for name, values in _DATA_PARALLEL.items()),
    ]


def held_out() -> list[Case]:
    """Rows that were planned before anybody had run them. What they took has mended two faults of the planner since."""
    files = ("holdout_h200.json", "holdout_second_h200.json")
    rows = [row for file in files for row in json.loads((_FOLDER / file).read_text("utf-8"))["rows"]]
    return [_case(row["name"], _values_of(row["flags"]), [row["measured"] | {"name": row["name"]}]) for row in rows]


def _values_of(flags: list[str]) -> dict[str, Any]:
    """The dotted keys that flags set, read as the command line does."""
    config = load(flags=split_flags(flags)[1], environ={}).config
    return {flag.key: value_of(config, flag.key) for flag in split_flags(flags)[1]}


def _case(name: str, values: Mapping[str, Any], rows: list[dict[str, Any]]) -> Case:
    found = [row for row in rows if row["name"] == name]
    preset = {
        "cluster.gpu": "h200",
        "cluster.gpus_per_node": 1,
        "model.flavor": "8B",
        "training.seq_len": 8192,
        "compile.enable": True,
    }
    return Case(
        id=name,
        stack="titan",
        values=preset | values,
        tokens_per_s_per_gpu=mean(row["tokens_per_s_per_gpu"] for row in found),
        memory_gib=mean(row["peak_reserved_gib"] for row in found),
    )
