"""What checkpoints take on disk."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.keys import with_values
from engine.planner.plan import plan
from engine.planner.saved import Saved, saved, staged_bytes

LLAMA_8B = 8_030_261_248


def of_8b(**edits: Any) -> Saved:
    """What 8B takes; keys with a double underscore for the dot."""
    return saved(with_values(Config(), {key.replace("__", "."): value for key, value in edits.items()}), LLAMA_8B)


def test_c36_one_checkpoint_of_8b_with_adamw_in_float32() -> None:
    one = of_8b().one_bytes
    assert one == 12 * LLAMA_8B
    assert (round(one / 1e9, 2), round(one / 2**30, 2)) == (96.36, 89.75)


def test_c36_three_kept_and_one_in_flight_stand_at_the_peak() -> None:
    found = of_8b(checkpoint__keep_latest_k=3, checkpoint__interval=100)
    assert (found.standing, round(found.peak_bytes / 1e9, 1)) == (4, 385.5)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "bytes_a_parameter"),
    [("AdamW", "float32", 12), ("Adam", "float32", 12), ("SGD", "float32", 4), ("AdamW", "bfloat16", 6)],
)
def test_a_checkpoint_holds_weights_and_states_in_their_precision(
    optimizer: str, dtype: str, bytes_a_parameter: int
) -> None:
    found = of_8b(optimizer__name=optimizer, training__dtype=dtype)
    assert found.one_bytes == bytes_a_parameter * LLAMA_8B


@pytest.mark.parametrize(("steps", "interval", "saves"), [(1000, 500, 2), (1001, 500, 3), (10, 500, 1), (500, 500, 1)])
def test_a_run_saves_every_interval_and_after_its_last_step(steps: int, interval: int, saves: int) -> None:
    assert of_8b(training__steps=steps, checkpoint__interval=interval).saves == saves


def test_all_that_are_saved_stand_where_all_are_kept() -> None:
    found = of_8b(checkpoint__keep_latest_k=0, training__steps=1000, checkpoint__interval=10)
    assert found.peak_bytes == found.limit_bytes == 100 * found.one_bytes


def test_no_more_stand_than_the_run_saves() -> None:
    found = of_8b(checkpoint__keep_latest_k=10, training__steps=1000, checkpoint__interval=500)
    assert (found.standing, found.limit_bytes) == (2, 11 * found.one_bytes)


@pytest.mark.parametrize(("dtype", "bytes_a_parameter"), [("float32", 4), ("bfloat16", 2)])
def test_an_export_at_the_end_adds_the_weights_once(dtype: str, bytes_a_parameter: int) -> None:
    found = of_8b(checkpoint__last_save_in_hf=True, checkpoint__export_dtype=dtype, training__steps=10)
    assert found.peak_bytes == found.one_bytes + bytes_a_parameter * LLAMA_8B


def test_the_copies_of_all_ranks_are_one_checkpoint() -> None:
    edits = {"cluster.gpu": "h200", "cluster.gpus_per_node": 8, "model.flavor": "8B"}
    resolved = plan(with_values(Config(), edits))
    assert 8 * staged_bytes(resolved.stages[0].memory) == pytest.approx(12 * LLAMA_8B, rel=1e-3)
