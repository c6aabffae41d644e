"""The fullest points of a block, held to what a real one holds on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fresh import fresh
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from engine.config import Float8, Model
from engine.dry.holding import Holding
from engine.dry.kernels import keep_as_a_gpu_does
from engine.model.llama import Decoder
from engine.model.rope import table
from engine.parallel.quantize import apply_float8
from engine.parallel.recompute import apply_recompute
from engine.parallel.tensor import apply_tensor_parallel
from engine.planner.activations import Low, Work
from engine.planner.block import LayerMode, block_peaks
from engine.planner.recompute import Recompute
from engine.shapes import ModelShape, shape_of

# Widths as unlike as those of real models, in small.
LLAMA = replace(shape_of(Model()), dim=256, n_layers=1, n_heads=8, n_kv_heads=4, head_dim=32, ffn_dim=896)
SEQUENCE = 1024
LOW: dict[str, Low] = {"tensorwise": "weight_gradients_low"}


def held(shape: ModelShape, *, mode: LayerMode, recipe: str | None, sequences: int, tp: int) -> tuple[int, int]:
    """Most bytes in forward and in backward of one bfloat16 block, its input counted and its weights not."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    with torch.device("meta"):
        part = Decoder(shape, (0,), first=False, last=False, seq_len=SEQUENCE).to(torch.bfloat16)
    if recipe is not None:
        apply_float8(part, Float8(enable=True, recipe_name=recipe), tp=tp)
    if tp > 1:
        apply_tensor_parallel(part, init_device_mesh("cpu", (tp,)), loss_parallel=True)
    apply_recompute(part, Recompute(mode=mode))
    keep_as_a_gpu_does([part])
    with FakeTensorMode(allow_non_fake_inputs=True), Holding() as holding:
        part.to_empty(device="cpu")
        places = table(shape, SEQUENCE, torch.device("cpu"))
        before = holding.now_bytes
        x_BSD = torch.empty(sequences, SEQUENCE // tp, shape.dim, dtype=torch.bfloat16, requires_grad=True)
        with holding.during("forward", "activations"):
            out_BSD = part.layers["0"](x_BSD, *places)
        # The next block has used it up by then.
        edge = get_gradient_edge(out_BSD)
        del out_BSD
        torch.autograd.backward(edge, torch.empty_like(x_BSD))
    dist.destroy_process_group()
    return holding.peaks_bytes["forward"] - before, holding.peaks_bytes["backward"] - before


MODES: tuple[LayerMode, ...] = ("none", "selective", "full")
CASES: list[dict[str, Any]] = [
    {"mode": mode, "recipe": recipe, "sequences": sequences, "tp": tp}
    for mode, recipe, (sequences, tp) in product(MODES, (None, "tensorwise"), ((1, 1), (1, 4), (2, 4)))
]


def all_held() -> list[tuple[int, int]]:
    """Forward and backward of every case, in one process."""
    return [held(LLAMA, **case) for case in CASES]


@pytest.fixture(scope="module")
def real() -> list[tuple[int, int]]:
    """What real blocks hold, in the order of the cases."""
    found: list[tuple[int, int]] = fresh(all_held)
    return found


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: "-".join(map(str, CASES[index].values())))
def test_a_block_is_as_full_as_a_real_one(index: int, real: list[tuple[int, int]]) -> None:
    case = CASES[index]
    work = Work(
        shape=LLAMA,
        tokens=case["sequences"] * SEQUENCE,
        tp=case["tp"],
        sequences=case["sequences"],
        float8=None if case["recipe"] is None else LOW[case["recipe"]],
    )
    peaks = block_peaks(work, case["mode"])
    # Tokens' own numbers and norms' are not all counted.
    assert (peaks.forward_bytes, peaks.backward_bytes) == pytest.approx(real[index], rel=0.03)


def test_a_compiled_block_holds_no_float32_copies_of_what_it_casts() -> None:
    eager = Work(shape=LLAMA, tokens=SEQUENCE, float8="weight_gradients_low")
    compiled = replace(eager, compiled=True)
    assert block_peaks(compiled, "full").backward_bytes < 0.75 * block_peaks(eager, "full").backward_bytes
