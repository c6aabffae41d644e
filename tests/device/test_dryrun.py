"""What a dry run counts without a GPU is what a GPU's allocator was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fresh import fresh
from synthetic import Rows, tiny

from engine.dryrun import dry_run
from engine.loop import fit
from engine.planner.plan import plan

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

# 5 to 10 GiB, so that cuBLAS's own 32 MiB weigh little.
LARGE: dict[str, Any] = {
    "cluster__gpu": "h200",
    "model__shape__dim": 1024,
    "model__shape__n_layers": 8,
    "model__shape__n_heads": 8,
    "model__shape__n_kv_heads": 4,
    "model__shape__ffn_dim": 4096,
    "model__shape__vocab_size": 32000,
    "training__seq_len": 4096,
    "training__local_batch_size": 4,
    "training__global_batch_size": -1,
    "training__steps": 3,
    "training__mixed_precision_param": "bfloat16",
}


def asked_for(values: dict[str, Any]) -> int:
    """Most bytes that tensors of a real run held at once on its GPU."""
    config = tiny(**values)
    resolved = plan(config)
    fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def counted(values: dict[str, Any]) -> int:
    """What a dry run says of the same run."""
    config = tiny(**values)
    (row,) = dry_run(config, plan(config))
    assert row["error"] is None, row["error"]
    return int(row["peak_bytes"])


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_dry_run_counts_what_a_gpu_holds(mode: str) -> None:
    values = {**LARGE, "activation_checkpoint__mode": mode}
    assert fresh(counted, values=values) == pytest.approx(fresh(asked_for, values=values), rel=0.05)


def test_dry_run_counts_what_float8_holds() -> None:
    values = {**LARGE, "quantize__dense__float8__enable": True}
    assert fresh(counted, values=values) == pytest.approx(fresh(asked_for, values=values), rel=0.05)
