"""Runs of dense models that NVIDIA published, Megatron on A100, H100 and Blackwell, as configs.

Knows the rows of DGX Cloud, NeMo, Megatron-Bridge and Calculon's table of Megatron-LM in published.csv whose model
is one of titan's families or a GPT of known shape, on hardware of titan's table. Leaves out what the table does not
say enough of: fine-tuning with frozen weights, NVFP4, mixtures of experts, GB300; and Megatron's own FSDP (`fsdp`),
which no stack here is. Nemotron and GPT-3 have a plain feed-forward of 4 x dim (a SwiGLU of 8/3 x dim has as many
weights and FLOPs).

Layers a stage follow from the virtual stages (`vp`); Megatron gives each stage as many. Its overlap of tensor-parallel
communication, which these runs had on, is asked for as async TP.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.shapes import FLAVORS
from tests.bench.published.case import Case

TABLE = Path(__file__).with_name("published.csv")
# Family and flavor, or dim, layers, heads, key heads, width of a plain feed-forward, vocabulary.
_LLAMAS = {
    "llama3.1-8b": ("llama3", "8B"),
    "llama3_8b": ("llama3", "8B"),
    "llama3.1-70b": ("llama3", "70B"),
    "llama3_70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"),
    "llama3.1_405b": ("llama3", "405B"),
    "llama2-7b": ("llama2", "7B"),
    "llama2-70b": ("llama2", "70B"),
}
_PLAIN = {
    "gpt3-5b": (4096, 24, 32, 32, 16_384, 51_200),
    "nemotron-8b": (4096, 32, 32, 32, 16_384, 256_000),
    "nemotron-22b": (6144, 40, 48, 48, 24_576, 256_000),
    "nemotron-340b": (18_432, 96, 96, 8, 73_728, 256_000),
    "gpt-22b": (6144, 48, 64, 64, 24_576, 51_200),
    "gpt-1t": (25_600, 128, 160, 160, 102_400, 51_200),
    "mt-nlg-530b": (20_480, 105, 128, 128, 81_920, 51_200),
}
_GPUS = {"H100": "h100-80", "A100": "a100-80", "B200": "b200", "GB200": "gb200"}
_PRECISIONS = {"bf16": "", "fp16": "", "fp8": "float8", "fp8-cs": "float8", "fp8(25.09)": "float8", "mxfp8": "mx"}


def cases() -> list[Case]:
    """The rows that can be said in titan's keys, in the order of the table; `nvidia-N` counts all rows of it."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [_case(number, row) for number, row in enumerate(rows, 1) if _is_said(row)]


def _is_said(row: Mapping[str, str]) -> bool:
    is_known = row["model"].lower() in _LLAMAS or row["model"].lower() in _PLAIN
    is_pretraining = not any(word in row["framework"] for word in ("SFT", "LoRA"))
    is_sharded = row["fsdp"] not in ("", "0")
    return (
        is_known
        and is_pretraining
        and not is_sharded
        and _gpu(row) is not None
        and row["precision"].lower() in _PRECISIONS
    )


def _gpu(row: Mapping[str, str]) -> str | None:
    kind = row["hw"].removeprefix("DGX-").partition("-")[0].partition(" ")[0]
    return _GPUS.get(kind)


def _case(number: int, row: Mapping[str, str]) -> Case:
    gpu, gpus = _gpu(row), int(row["gpus"])
    assert gpu is not None, "only rows with a GPU of the table are cases"
    node = min(gpus, 4 if gpu == "gb200" else 8)
    tp, pp, cp, micro = (int(row[key] or 1) for key in ("tp", "pp", "cp", "mbs"))
    data = gpus // (tp * pp * cp)
    values: dict[str, Any] = {
        "cluster.gpu": gpu,
        "cluster.nodes": gpus // node,
        "cluster.gpus_per_node": node,
        "training.seq_len": int(row["seq"]),
        "training.global_batch_size": int(row["gbs"]),
        "training.local_batch_size": int(row["gbs"]) // data if pp > 1 else micro,
        "parallelism.data_parallel_shard_degree": data,
        "parallelism.tensor_parallel_degree": tp,
        "parallelism.enable_async_tensor_parallel": tp > 1 and gpu != "a100-80",
        "parallelism.pipeline_parallel_degree": pp,
        "parallelism.context_parallel_degree": cp,
        "compile.enable": True,
    }
    values |= _model(row) | _pipeline(row, pp=pp, micro=micro) | _recompute(row)
    precision = _PRECISIONS[row["precision"].lower()]
    if precision:
        values[f"quantize.dense.{precision}.enable"] = True
    return Case(
        id=f"nvidia-{number}",
        stack="megatron",
        values=values,
        tokens_per_s_per_gpu=float(row["tok_s_gpu"]),
        note=f"{row['model']} {gpu} x{gpus} tp {tp} pp {pp} cp {cp} vp {row['vp']} {row['precision']}",
    )


def _model(row: Mapping[str, str]) -> dict[str, Any]:
    name = row["model"].lower()
    if name in _LLAMAS:
        family, flavor = _LLAMAS[name]
        cut = {"model.shape.n_layers": int(row["layers"])} if row["layers"] else {}
        return {"model.name": family, "model.flavor": flavor} | cut
    dim, layers, heads, key_heads, ffn, vocabulary = _PLAIN[name]
    return {
        "model.name": "llama2",
        "model.flavor": "7B",
        "model.shape.dim": dim,
        "model.shape.n_layers": int(row["layers"] or layers),
        "model.shape.n_heads": heads,
        "model.shape.n_kv_heads": key_heads,
        "model.shape.ffn_dim": -(-2 * ffn // (3 * 128)) * 128,
        "model.shape.vocab_size": vocabulary,
    }


def _pipeline(row: Mapping[str, str], *, pp: int, micro: int) -> dict[str, Any]:
    if pp == 1:
        return {}
    values: dict[str, Any] = {
        "parallelism.pipeline_parallel_schedule": "1F1B",
        "parallelism.pipeline_parallel_microbatch_size": micro,
    }
    turns = int(row["vp"]) if row["vp"].isdigit() else 1
    if turns > 1:
        values["parallelism.pipeline_parallel_schedule"] = "Interleaved1F1B"
        values["parallelism.pipeline_parallel_layers_per_stage"] = -(-_layers(row) // (pp * turns))
    return values


def _layers(row: Mapping[str, str]) -> int:
    name = row["model"].lower()
    if row["layers"]:
        return int(row["layers"])
    if name in _PLAIN:
        return _PLAIN[name][1]
    family, flavor = _LLAMAS[name]
    return FLAVORS[family][flavor].n_layers


def _recompute(row: Mapping[str, str]) -> dict[str, Any]:
    """Megatron-LM's full or selective recomputation where the table says so; NeMo's recipes keep everything."""
    if "full-recompute" in row["framework"]:
        return {"activation_checkpoint.mode": "full"}
    if "selective" in row["framework"]:
        return {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
    return {"activation_checkpoint.mode": "none"}
