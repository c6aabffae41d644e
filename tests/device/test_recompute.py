"""Recomputation on a GPU: the same bits, the same attention kernel, less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from synthetic import Rows, tiny
from watching import Watching

from engine.loop import fit
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.recompute import apply_recompute
from engine.planner.plan import plan
from engine.planner.recompute import Recompute
from engine.shapes import shape_of

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]

SIZES: dict[str, Any] = {
    "cluster__gpu": "h200",
    "model__shape__dim": 256,
    "model__shape__n_layers": 4,
    "model__shape__ffn_dim": 512,
    "training__seq_len": 512,
    "training__mixed_precision_param": "bfloat16",
}
MODES: dict[str, dict[str, Any]] = {
    "op": {"activation_checkpoint__mode": "selective"},
    "every_second": {"activation_checkpoint__mode": "selective", "activation_checkpoint__selective_ac_option": 2},
    "full": {"activation_checkpoint__mode": "full"},
}
CUDNN = "aten::_scaled_dot_product_cudnn_attention"


def figures(**values: Any) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step of a deterministic run."""
    config = tiny(**(SIZES | {"debug__deterministic": True} | values))
    resolved = plan(config)
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    return [(step["loss"], step["grad_norm"]) for step in outcome.steps]


@pytest.mark.parametrize("name", MODES)
def test_figures_are_the_same_to_the_bit(name: str) -> None:
    assert figures(**MODES[name]) == figures()


def step_of(recompute: Recompute) -> tuple[int, Watching]:
    """Peak bytes of a forward and backward in bfloat16, and the operations of a second one."""
    device = torch.device("cuda")
    shape = shape_of(tiny(**SIZES).model)
    with torch.device("meta"):
        part = Decoder(shape, tuple(range(4)), first=True, last=True, seq_len=512).bfloat16()
    apply_recompute(part, recompute)
    materialise(part, 0, device)
    tokens_BS = torch.randint(0, 259, (8, 512), device=device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    part(tokens_BS, tokens_BS).backward()
    peak_bytes = torch.cuda.max_memory_allocated()
    with Watching() as seen:
        part(tokens_BS, tokens_BS).backward()
    return peak_bytes, seen


def test_peak_memory_falls_from_none_over_selective_to_full() -> None:
    none, op, full = (
        step_of(recompute)[0] for recompute in (Recompute(), Recompute(mode="selective"), Recompute(mode="full"))
    )
    print(none, op, full)
    assert none > op > full


def test_attention_is_computed_again_by_the_kernel_that_computed_it() -> None:
    once = step_of(Recompute())[1].calls
    again = step_of(Recompute(mode="full"))[1].calls
    kept = step_of(Recompute(mode="selective"))[1].calls
    assert (once[CUDNN], kept[CUDNN], again[CUDNN]) == (4, 4, 8)
