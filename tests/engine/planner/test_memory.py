"""Static memory: exact bytes of parameters, gradients and optimizer states."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.keys import with_values
from engine.planner.memory import Memory, local_numel, static_memory
from engine.planner.saved import staged_bytes
from engine.shapes import FLAVORS, Parameter, block_parameters, parameter_count, part_parameters

GIB = 1 << 30
EIGHT_B = FLAVORS["llama3"]["8B"]


def memory(edits: dict[str, Any], *, tp: int = 1, fsdp: int = 1, capacity_bytes: int = 80 * GIB) -> Memory:
    """Static memory of a rank of Llama 3 8B."""
    weights = part_parameters(EIGHT_B, tuple(range(32)), first=True, last=True).values()
    config = with_values(Config(), edits)
    return static_memory(
        weights,
        tp=tp,
        fsdp=fsdp,
        dtype=config.training.dtype,
        optimizer=config.optimizer.name,
        capacity_bytes=capacity_bytes,
    )


def test_c48_eight_billion_parameters_in_bf16() -> None:
    found = memory({"training.dtype": "bfloat16"})
    assert (round(found.params_bytes / 1e9, 2), round(found.params_bytes / GIB, 2)) == (16.06, 14.96)


def test_c48_fsdp_8_in_fp32_with_adam() -> None:
    found = memory({}, fsdp=8)
    assert round(found.static_bytes / GIB, 2) == 14.96
    assert round(found.optimizer_bytes / GIB, 2) == 7.48


@pytest.mark.parametrize(("name", "states"), [("AdamW", 2), ("Adam", 2), ("SGD", 0)])
def test_optimizer_states_are_those_of_the_optimizer(name: str, states: int) -> None:
    found = memory({"optimizer.name": name})
    assert found.optimizer_bytes == states * found.params_bytes
    assert found.grads_bytes == found.params_bytes == 4 * parameter_count(EIGHT_B)


def test_copies_are_held_beside_weights_and_are_not_what_is_updated_or_saved() -> None:
    plain = memory({})
    weights = part_parameters(EIGHT_B, tuple(range(32)), first=True, last=True).values()
    whole = static_memory(
        weights,
        tp=1,
        fsdp=1,
        dtype="float32",
        optimizer="AdamW",
        capacity_bytes=80 * GIB,
        copy_bytes=2,
        gradient_bytes=2,
    )
    count = parameter_count(EIGHT_B)
    assert (whole.masters_bytes, whole.copies_bytes, whole.grads_bytes) == (4 * count, 2 * count, 2 * count)
    assert whole.static_bytes == plain.static_bytes == 16 * count
    assert staged_bytes(whole) == staged_bytes(plain)


def test_two_shards_halve_what_a_rank_holds() -> None:
    assert memory({}, fsdp=2).static_bytes * 2 == memory({}).static_bytes


def test_tensor_parallel_leaves_only_norms_whole() -> None:
    norms = sum(w.numel for w in block_parameters(EIGHT_B).values() if w.split == "whole") * 32 + EIGHT_B.dim
    whole, half = memory({}), memory({}, tp=2)
    assert half.params_bytes == 4 * ((whole.params_bytes // 4 - norms) // 2 + norms)


@pytest.mark.parametrize(
    ("shape", "split", "tp", "fsdp", "numel"),
    [
        ((10, 4), "rows", 1, 4, 3 * 4),
        ((10, 4), "rows", 2, 4, 2 * 4),
        ((10, 4), "columns", 2, 4, 3 * 2),
        ((10, 4), "whole", 2, 4, 3 * 4),
        ((10,), "whole", 2, 3, 4),
        ((50_257, 4), "rows", 2, 1, 25_129 * 4),
        ((9, 4), "rows", 2, 4, 5 * 1),
        ((3, 4), "rows", 1, 8, 4),
    ],
)
def test_rank_0_holds_the_largest_piece(shape: tuple[int, ...], split: Any, tp: int, fsdp: int, numel: int) -> None:
    assert local_numel(Parameter(shape=shape, split=split), tp=tp, fsdp=fsdp) == numel


@pytest.mark.parametrize(("rows", "ranks"), [(10, 4), (3, 8), (16, 4), (7, 3), (1, 2)])
def test_pieces_are_those_that_torch_cuts(rows: int, ranks: int) -> None:
    import torch

    largest = max(piece.numel() for piece in torch.empty(rows, 2).chunk(ranks))
    assert local_numel(Parameter(shape=(rows, 2), split="whole"), tp=1, fsdp=ranks) == largest


def test_what_exceeds_the_gpu_does_not_fit() -> None:
    assert memory({}, capacity_bytes=memory({}).static_bytes - 1).fits is False


def test_what_static_memory_leaves_room_for_is_not_known_to_fit() -> None:
    found = memory({}, capacity_bytes=memory({}).static_bytes)
    assert found.fits is None
    assert (found.activations_bytes, found.peak_bytes, found.reserved_bytes, found.moment) == (None, None, None, None)
