"""Bytes an element of weights that no other rank shares, and of the optimizer's update."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.keys import with_values
from engine.planner.mesh import Mesh
from engine.planner.stack import LLM_FOUNDRY, MEGATRON, TORCHTITAN
from engine.planner.update import adding_bytes, copy_bytes, gradient_dtype, holds_whole, moved_bytes, taken_bytes

DTYPE, PARAM, REDUCE = "training.dtype", "training.mixed_precision_param", "training.mixed_precision_reduce"
KERNEL, NAME = "optimizer.implementation", "optimizer.name"


def config_of(values: dict[str, Any]) -> Config:
    """The defaults (float32 weights, products in bfloat16, sums in float32, fused AdamW) and these keys."""
    return with_values(Config(), values)


@pytest.mark.parametrize(
    ("degrees", "whole"),
    [({}, True), ({"tp": 2}, True), ({"pp": 4}, True), ({"cp": 2}, False), ({"dp_shard": 2}, False)],
)
def test_ranks_that_share_no_weight_hold_theirs_whole(degrees: dict[str, int], whole: bool) -> None:
    mesh = Mesh(**{"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1} | degrees)
    assert holds_whole(mesh) == whole
    assert not any(holds_whole(mesh, stack) for stack in (TORCHTITAN, MEGATRON, LLM_FOUNDRY))


def test_replicas_of_one_shard_share_their_weights() -> None:
    assert not holds_whole(Mesh(pp=1, dp_replicate=2, dp_shard=1, cp=1, tp=1))


@pytest.mark.parametrize(
    ("values", "size"), [({}, 2), ({PARAM: "float32"}, 0), ({DTYPE: "bfloat16"}, 0)], ids=["mixed", "single", "half"]
)
def test_a_copy_stands_only_where_products_have_another_precision(values: dict[str, Any], size: int) -> None:
    assert copy_bytes(config_of(values)) == size


def test_gradients_are_wide_only_where_several_are_added_up() -> None:
    assert [gradient_dtype(config_of({}), adds_up=adds_up) for adds_up in (False, True)] == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("values", "backwards", "moved"),
    [
        ({}, 1, 0),
        # Cast 2 + 4, then three times 2 + 4 + 4, all at half the rate.
        ({}, 4, 2 * (6 + 3 * 10)),
        # The first is its own sum.
        ({REDUCE: "bfloat16"}, 4, 3 * 6),
    ],
)
def test_each_backward_but_the_first_reads_and_writes_the_sums(
    values: dict[str, Any], backwards: int, moved: float
) -> None:
    assert adding_bytes(config_of(values), backwards=backwards) == moved


@pytest.mark.parametrize(
    ("values", "gradient", "copy", "moved"),
    [
        ({}, "bfloat16", 2, 28),
        ({}, "float32", 2, 30),
        ({DTYPE: "bfloat16"}, "bfloat16", 0, 14),
        ({PARAM: "float32"}, "float32", 0, 28),
        ({NAME: "SGD"}, "bfloat16", 2, 12 + 6 + 6),
        ({KERNEL: "foreach"}, "bfloat16", 2, 2 * 28 + 6 + 6),
    ],
)
def test_an_update_on_a_gpu_moves(values: dict[str, Any], gradient: Any, copy: int, moved: int) -> None:
    assert moved_bytes(config_of(values), gradient=gradient, copy=copy, on_gpu=True) == moved


def test_an_update_on_a_processor_casts_gradients_and_copies_weights_in_passes_of_their_own() -> None:
    assert moved_bytes(config_of({}), gradient="bfloat16", copy=2, on_gpu=False) == 28 + 6 + 6


@pytest.mark.parametrize(
    ("values", "on_gpu", "taken"),
    [
        ({}, True, 0),
        ({}, False, 4 * 1000),
        ({DTYPE: "bfloat16"}, False, 0),
        ({KERNEL: "foreach"}, True, 8 * 1000),
        ({KERNEL: "for-loop"}, True, 4 * (1000 + 2 * 300)),
        ({NAME: "SGD", KERNEL: "for-loop"}, True, 4 * (1000 + 300)),
        ({NAME: "SGD"}, True, 4 * 1000),
    ],
)
def test_an_update_of_gradients_in_16_bits_takes(values: dict[str, Any], on_gpu: bool, taken: int) -> None:
    config = config_of(values)
    assert taken_bytes(config, 1000, largest=300, gradient="bfloat16", on_gpu=on_gpu) == taken
