"""Checkpoints of a GPU: the same bits after a resume, and no memory of the card for a save."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import train

from engine.checkpoint.manifest import read_manifest

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
    "training__mixed_precision_param": "bfloat16",
    "debug__deterministic": True,
}


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_one_gpu_goes_on_to_the_bit(implementation: str, tmp_path: Path) -> None:
    given = ON_GPU | {"optimizer__implementation": implementation, "training__steps": 8}
    straight = train(given, str(tmp_path / "straight"))
    train(given, str(tmp_path / "cut"), ends_after=4)
    resumed = train(given, str(tmp_path / "cut"))
    assert {step: straight["losses"][step] for step in (5, 6, 7, 8)} == resumed["losses"]
    assert straight["held"].keys() == resumed["held"].keys()
    assert all(torch.equal(value, resumed["held"][name]) for name, value in straight["held"].items())


def test_a_save_and_a_load_take_no_memory_of_the_card(tmp_path: Path) -> None:
    wide = {"model__shape__dim": 2048, "model__shape__ffn_dim": 8192, "model__shape__n_layers": 8}
    given = ON_GPU | wide | {"training__steps": 4, "debug__deterministic": False}
    peaks = {
        "never saved": _peak_bytes(given | {"checkpoint__interval": 100}, tmp_path / "without"),
        "saved after every step": _peak_bytes(given | {"checkpoint__interval": 1}, tmp_path / "with"),
        "resumed": _peak_bytes(given, tmp_path / "with", ends_after=None),
    }
    written = read_manifest(tmp_path / "with" / "checkpoints" / "step-3")
    print(f"{peaks}, {written.bytes} bytes")
    assert peaks["saved after every step"] == peaks["never saved"]
    assert peaks["resumed"] <= peaks["never saved"]


def _peak_bytes(given: dict[str, Any], folder: Path, ends_after: int | None = 3) -> int:
    """What a run takes beside what was there before it."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = train(given, str(folder), ends_after=ends_after)
    print([event["seconds"] for event in found["events"] if event.get("state") == "committed"])
    return torch.cuda.max_memory_allocated() - before
