"""Validation on a GPU: compiled and in float8 it leaves training as it was, and takes no more memory than a step."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import train
from torch._dynamo.utils import counters

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions
    pytest.mark.filterwarnings("default"),
]

ON_GPU: dict[str, Any] = {
    "cluster__gpu": "h200",
    "model__shape__dim": 256,
    "model__shape__ffn_dim": 512,
    "training__seq_len": 128,
    "training__steps": 6,
    "training__mixed_precision_param": "bfloat16",
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a validation after every other step."""
    path = tmp_path_factory.mktemp("held") / "held.jsonl"
    path.write_text("".join(json.dumps({"text": f"{number:x} " * 90}) + "\n" for number in range(80)))
    return {
        "validation__enable": True,
        "validation__dataset": "jsonl",
        "validation__dataset_path": str(path),
        "validation__freq": 2,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile__enable": True},
    "compiled float8 pieces": {
        "compile__enable": True,
        "quantize__dense__float8__enable": True,
        "model__shape__vocab_size": 272,
        "training__loss_chunks": 4,
        "data__document_mask": True,
    },
    "compiled, recomputed": {"compile__enable": True, "activation_checkpoint__mode": "selective"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_does_not_notice_a_validation(variant: str, held_out: dict[str, Any], tmp_path: Path) -> None:
    given = ON_GPU | {"debug__deterministic": True} | VARIANTS[variant]
    torch.compiler.reset()
    counters.clear()
    without = train(given, str(tmp_path / "without"))
    graphs = counters["stats"]["unique_graphs"]
    torch.compiler.reset()
    counters.clear()
    found = train(given | held_out, str(tmp_path / "with"))
    assert found["losses"] == without["losses"]
    assert all(torch.equal(value, found["held"][name]) for name, value in without["held"].items())
    # One more of each, without gradients.
    assert counters["stats"]["unique_graphs"] == 2 * graphs
    validated = [event for event in found["events"] if event["kind"] == "validation"]
    print(variant, [(event["step"], event["loss"], event["tokens"], event["seconds"]) for event in validated])
    assert [event["step"] for event in validated] == [2, 4, 6]


def test_compiled_validation_losses_are_those_of_eager(held_out: dict[str, Any], tmp_path: Path) -> None:
    losses = {}
    for compiled in (False, True):
        values = {"training__mixed_precision_param": "float32", "data__document_mask": True}
        given = ON_GPU | held_out | values | {"compile__enable": compiled}
        found = train(given, str(tmp_path / str(compiled)))
        losses[compiled] = [event["loss"] for event in found["events"] if event["kind"] == "validation"]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


@pytest.mark.parametrize("chunks", [1, 8])
def test_a_validation_takes_no_more_memory_than_a_step(chunks: int, held_out: dict[str, Any], tmp_path: Path) -> None:
    shape = {"dim": 1024, "ffn_dim": 4096, "n_layers": 4, "vocab_size": 65536}
    wide = {f"model__shape__{name}": value for name, value in shape.items()}
    given = ON_GPU | wide | {"training__seq_len": 1024, "training__loss_chunks": chunks}
    peaks = {}
    for name, keys in (("without", {}), ("with", held_out)):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        train(given | keys, str(tmp_path / name))
        peaks[name] = torch.cuda.max_memory_allocated() - before
    print(chunks, peaks)
    assert peaks["with"] <= peaks["without"] * 1.001
