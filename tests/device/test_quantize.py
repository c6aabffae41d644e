"""Low precision on a GPU, with the kernels of the hardware: near bfloat16, eager and compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from synthetic import Rows, tiny

from engine.data.batch import Batch
from engine.loop import fit
from engine.planner.plan import plan

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]

SIZES: dict[str, Any] = {
    "cluster__gpu": "h200",
    "model__shape__dim": 256,
    "model__shape__n_kv_heads": 2,
    "model__shape__ffn_dim": 512,
    "training__seq_len": 128,
    "training__mixed_precision_param": "bfloat16",
    "training__steps": 20,
    "optimizer__lr": 1e-3,
    "lr_scheduler__decay_ratio": 0.0,
}
FLOAT8 = {"quantize__dense__float8__enable": True}
RECIPES: dict[str, dict[str, Any]] = {
    **{
        name: FLOAT8 | {"quantize__dense__float8__recipe_name": name}
        for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    },
    "mxfp8_emulated": {"quantize__dense__mx__enable": True, "quantize__dense__mx__recipe_name": "mxfp8_emulated"},
}


class SameRows(Rows):
    """The first step's batches in every step, so that there is something to learn."""

    def batches(self, step: int) -> list[Batch] | None:
        """As the loader's."""
        return super().batches(min(step, 1))


def losses(**values: Any) -> torch.Tensor:
    """Losses of twenty steps on one GPU."""
    config = tiny(**(SIZES | values))
    resolved = plan(config)
    outcome = fit(config, resolved, source=SameRows(config, resolved, data_rank=0))
    return torch.tensor([step["loss"] for step in outcome.steps], dtype=torch.float64)


@cache
def bfloat16() -> torch.Tensor:
    """Losses without low precision."""
    return losses()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", RECIPES)
def test_low_precision_trains_within_two_percent_of_bfloat16(name: str, compiled: bool) -> None:
    found = losses(**RECIPES[name], compile__enable=compiled)
    print((found / bfloat16() - 1).abs().max().item())
    assert not torch.equal(found, bfloat16())
    torch.testing.assert_close(found, bfloat16(), rtol=0.02, atol=0)


def test_emulated_float8_follows_that_of_the_hardware() -> None:
    torch.testing.assert_close(
        losses(**FLOAT8, quantize__dense__float8__emulate=True), losses(**FLOAT8), rtol=0.01, atol=0
    )


def test_pieces_of_the_loss_hold_less_and_train_alike() -> None:
    peaks, found = [], []
    for chunks in (1, 8):
        torch.cuda.reset_peak_memory_stats()
        found.append(losses(model__shape__vocab_size=64_000, training__steps=3, training__loss_chunks=chunks))
        peaks.append(torch.cuda.max_memory_allocated())
    print(peaks)
    assert peaks[1] < 0.75 * peaks[0]
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=0)
