"""Runs that llm-foundry published for MPT models, PyTorch FSDP on A100 and H100, as configs of titan.

Knows the models of its `yamls/pretrain/mpt-*.yaml`, and which of its runs recomputed activations: the table does
not say, but the scripts that submitted the runs do (`scripts/train/benchmarking/sweep.sh`, `sweep.py`), and where
neither names a run, the default of the model's file: 3B and larger recompute. Only the two copies of a
row with and without float8 differ in precision; float8 was Transformer Engine's, here tensorwise. The stack is
`llm-foundry`: torch 2.0 with CUDA 11.8; as `torchtitan` the same rows are 15 % off on average, for its attention is
faster and its blocks are Llama's.

MPT has a plain feed-forward of 4 x dim; the SwiGLU of 8/3 x dim has as many weights and FLOPs. Nothing was compiled;
attention was FlashAttention (its Triton or its CUDA version).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from tests.bench.published.case import Case

_TABLE = Path(__file__).parent / "published.csv"
# dim, layers, heads
_MODELS = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
_GPUS = {"h100_80gb": "h100-80", "a100_80gb": "a100-80", "a100_40gb": "a100-40"}
_SMALL = {"125m", "350m", "760m", "1b"}


def cases() -> list[Case]:
    """All rows of the table, in its order; `foundry-N` counts them from 1."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["framework"].startswith("llm-foundry")]
    return [_case(f"foundry-{number}", row) for number, row in enumerate(rows, 1)]


def _case(name: str, row: dict[str, str]) -> Case:
    size = row["model"].removeprefix("mpt-")
    dim, layers, heads = _MODELS[size]
    gpus, local = int(row["gpus"]), int(row["mbs"])
    recomputed = recomputes(size, row["hw"], seq_len=int(row["seq"]), local=local)
    values: dict[str, Any] = {
        "cluster.gpu": _GPUS[row["hw"]],
        "cluster.nodes": max(1, gpus // 8),
        "cluster.gpus_per_node": min(gpus, 8),
        "model.name": "llama2",
        "model.flavor": "7B",
        "model.shape.dim": dim,
        "model.shape.n_layers": layers,
        "model.shape.n_heads": heads,
        "model.shape.n_kv_heads": heads,
        "model.shape.ffn_dim": -(-8 * dim // (3 * 128)) * 128,
        "model.shape.vocab_size": 50_368,
        "model.shape.tie_embeddings": True,
        "training.seq_len": int(row["seq"]),
        "training.local_batch_size": local,
        "training.global_batch_size": int(row["gbs"]),
        "activation_checkpoint.mode": "full" if recomputed else "none",
        "parallelism.fsdp_reshard_after_forward": "never" if "GRAD_OP" in row["framework"] else "default",
        "optimizer.implementation": "foreach",
    }
    if row["precision"] == "amp_fp8":
        values["quantize.dense.float8.enable"] = True
    return Case(
        id=name,
        stack="llm-foundry",
        values=values,
        tokens_per_s_per_gpu=float(row["tok_s_gpu"]),
        note=f"{size} {row['hw']} x{gpus} {row['seq']}x{local} {row['precision']}{' recomputed' if recomputed else ''}",
    )


def recomputes(size: str, hardware: str, *, seq_len: int, local: int) -> bool:
    """Whether a run recomputed each block, by the scripts that submitted it.

    Up to 1B none did, except at 65,536 tokens; 3B did from 32,768 tokens on; 7B on 80 GB cards but at 512 and 2,048
    tokens; 13B but at 2,048 tokens with microbatches of two; all larger ones did.
    """
    if size in _SMALL:
        return seq_len >= 65_536 and size in ("760m", "1b")
    if size == "3b":
        return seq_len >= 32_768
    if size == "7b":
        return hardware == "a100_40gb" or seq_len not in (512, 2048)
    return not (size == "13b" and seq_len == 2048 and local <= 2)
