"""Bytes of memory-bound kernels: what fusing, casts and ranks change, and what an H200 took for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.hardware import GPUS, Cluster
from engine.planner.activations import Work
from engine.planner.kernels import kernels_of
from engine.planner.stack import LLM_FOUNDRY, MEGATRON, TITAN, TORCHTITAN
from engine.planner.traffic import backward_traffic, cast_bytes, forward_traffic, loss_traffic
from engine.shapes import FLAVORS

MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "bench" / "kernels_h200.json").read_text(encoding="utf-8")
)
WORK = Work(shape=FLAVORS["llama3"]["8B"], tokens=8192)
COMPILED = replace(WORK, compiled=True, compiled_loss=True)


def seconds(bytes_moved: float) -> float:
    """On an H200."""
    h200 = Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=1, network_gbit_per_s_per_gpu=None)
    kernels = kernels_of(h200, TITAN)
    assert kernels is not None
    return kernels.elementwise_s(bytes_moved)


def test_the_compiler_leaves_less_than_half_of_forward():
    assert forward_traffic(COMPILED, TITAN).bytes < 0.5 * forward_traffic(WORK, TITAN).bytes


def test_kernels_fused_by_hand_move_no_more_without_a_compiler():
    assert forward_traffic(WORK, MEGATRON) == forward_traffic(COMPILED, TITAN)
    assert backward_traffic(WORK, MEGATRON) == backward_traffic(COMPILED, TITAN)


def test_gpt_blocks_move_less_than_llamas():
    assert backward_traffic(WORK, LLM_FOUNDRY).bytes < 0.6 * backward_traffic(WORK, TORCHTITAN).bytes


@pytest.mark.parametrize("traffic", [forward_traffic, backward_traffic])
@pytest.mark.parametrize("work", [WORK, COMPILED])
def test_tokens_and_bytes_grow_together(traffic, work):
    assert traffic(replace(work, tokens=16_384), TITAN).bytes == 2 * traffic(work, TITAN).bytes


def test_sequence_parallel_leaves_a_rank_its_share_of_what_is_not_whole():
    whole, half = forward_traffic(COMPILED, TITAN).bytes, forward_traffic(replace(COMPILED, tp=2), TITAN).bytes
    assert half == whole / 2


def test_norms_of_heads_are_counted_for_qwen3():
    shape = FLAVORS["qwen3"]["8B"]
    plain = replace(shape, qk_norm=False)
    with_norms, without = (forward_traffic(replace(WORK, shape=one), TITAN).bytes for one in (shape, plain))
    assert with_norms > without


@pytest.mark.parametrize(("how", "work"), [("eager", WORK), ("compile", COMPILED)])
def test_cross_entropy_takes_what_was_measured_on_h200(how, work):
    forward, backward = loss_traffic(work, TITAN)
    for name, moved in (("cross entropy", forward), ("cross entropy backward", backward)):
        row = next(r for r in MEASURED["ends"] if (r["work"], r.get("how"), r["tokens"]) == (name, how, 8192))
        assert seconds(moved) == pytest.approx(row["s"], rel=0.06)


def test_pieces_of_the_loss_sum_the_heads_gradient_in_float32():
    more = loss_traffic(replace(COMPILED, loss_chunks=8), TITAN)[1] - loss_traffic(COMPILED, TITAN)[1]
    assert more == 8 * 128_256 * 4096 * (2 + 4 + 4)


@pytest.mark.parametrize(("work", "how", "rel"), [("cast tensor", "eager", 0.1), ("cast tensor", "compile", 0.15)])
def test_casts_to_float8_take_what_was_measured_on_h200(work, how, rel):
    row = next(r for r in MEASURED["float8_casts"] if (r["work"], r["how"], r["elements"]) == (work, how, 117_440_512))
    moved = cast_bytes(8192, 14_336, layouts=1, scaling="tensorwise", compiled=how == "compile")
    assert seconds(moved) == pytest.approx(row["s"], rel=rel)


def test_scales_of_earlier_steps_save_a_pass():
    delayed, dynamic = (cast_bytes(8, 8, layouts=2, scaling=one, compiled=True) for one in ("delayed", "tensorwise"))
    assert delayed == dynamic / 2


def test_rows_and_columns_with_scales_of_their_own_cost_most():
    assert cast_bytes(8, 8, layouts=2, scaling="rowwise", compiled=True) > 2 * cast_bytes(
        8, 8, layouts=2, scaling="tensorwise", compiled=True
    )
