"""Batch, sequence and schedule: accumulation, microbatches, logits, tokens."""

from __future__ import annotations

from typing import Any

import pytest

LOCAL, GLOBAL, SEQ_LEN = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
CHUNKS = "training.loss_chunks"
PP, SCHEDULE = "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_schedule"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"


def figures(found: Any) -> dict[str, Any]:
    return {figure.name: figure.value for figure in found.figures}


def formula(found: Any, name: str) -> str:
    return next(figure.formula for figure in found.figures if figure.name == name)


def test_a_global_batch_left_open_follows_from_the_local_one(explain: Any) -> None:
    found = explain({LOCAL: 2})[GLOBAL]
    assert (found.derived.value, found.derived.formula) == (16, "local_batch_size 2 x 8 data ranks = 16")


def test_a_larger_global_batch_accumulates_and_costs_time(explain: Any) -> None:
    found = explain({"model.flavor": "8B", SEQ_LEN: 4096, GLOBAL: 64})[GLOBAL]
    assert found.derived is None
    assert figures(found)["gradient accumulation steps"] == 8
    assert formula(found, "gradient accumulation steps") == "64 / (local_batch_size 1 x 8 data ranks) = 8"
    assert found.cost.ms > 0
    assert found.cost.text.startswith("against 8, one accumulation step: ")


def test_an_automatic_batch_is_the_planners_with_the_room_it_leaves(explain: Any) -> None:
    found = explain({"model.flavor": "8B", SEQ_LEN: 8192, LOCAL: "auto"})[LOCAL]
    assert found.derived.value >= 1
    assert found.derived.formula.startswith("the fastest of those that leave 8 % free: ")
    assert "of 79.1 GiB" in found.derived.formula


def test_microbatches_follow_from_the_local_batch(preset: Any) -> None:
    assert figures(preset("3d-405b")[LOCAL]) == {"microbatches": 8}


def test_ranks_that_read_the_same_batch_are_counted(preset: Any) -> None:
    assert preset("3d-405b")[LOCAL].ties.startswith("64 ranks read the same sequences")
    assert preset("fsdp-8b")[LOCAL].ties == "none"


def test_layers_left_open_are_split_by_work(preset: Any) -> None:
    found = preset("3d-405b")[LAYERS]
    assert found.derived.value == 8
    assert found.derived.formula.startswith("8 ranks x 2 of 7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7 layers")


def test_without_a_pipeline_one_stage_has_all_layers(preset: Any) -> None:
    assert preset("fsdp-8b")[LAYERS].derived.value == 32
    assert preset("fsdp-8b")[SCHEDULE].cost.text == "none: pp=1"


def test_a_schedule_is_held_against_1f1b_and_tells_its_bubble(preset: Any) -> None:
    found = preset("3d-405b")[SCHEDULE]
    assert found.cost.ms < 0
    assert found.cost.text.startswith("against 1F1B: that would be +")
    assert 0 < figures(found)["bubble, % of a step"] < 100


def test_a_microbatch_of_several_sequences_is_held_against_one(preset: Any) -> None:
    found = preset("3d-405b")[MICROBATCH].cost
    assert found.bytes > 0
    assert found.text.startswith("against 1: that would be -")


def test_tokens_of_a_step_and_of_the_run(preset: Any) -> None:
    found = preset("3d-405b")
    assert figures(found[SEQ_LEN])["tokens per step"] == 256 * 8192
    assert figures(found["training.steps"])["tokens of the run"] == 1000 * 256 * 8192


def test_c48_tokens_a_second_count_each_sequence_of_the_data_ranks_once(explain: Any) -> None:
    edits = {
        "model.flavor": "8B",
        SEQ_LEN: 4096,
        "training.local_batch_size": 2,
        "parallelism.tensor_parallel_degree": 2,
        "parallelism.context_parallel_degree": 2,
    }
    found = explain(edits)[SEQ_LEN]
    assert figures(found)["tokens per step"] == 16_384
    step_s = float(formula(found, "tokens per second of a GPU").split(" / ")[1].removesuffix(" s"))
    assert figures(found)["tokens per second of a GPU"] == pytest.approx(16_384 / step_s / 8, rel=1e-3)


@pytest.mark.parametrize(("tp", "gib"), [(1, 4.64), (4, 1.16)])
def test_c48_float32_logits_of_a_long_vocabulary(tp: int, gib: float, explain: Any) -> None:
    edits = {"model.name": "qwen3", "model.flavor": "8B", SEQ_LEN: 8192, "parallelism.tensor_parallel_degree": tp}
    found = explain(edits)[CHUNKS]
    assert figures(found) == {"float32 logits of a microbatch, GiB": gib}
    assert found.figures[0].formula.startswith("8,192 tokens x 151,936 entries x 4 bytes")
    assert "on the rank of the head only" in found.figures[0].formula


def test_loss_in_pieces_is_held_against_whole_logits(explain: Any) -> None:
    found = explain({"model.flavor": "8B", SEQ_LEN: 8192, CHUNKS: 8})[CHUNKS].cost
    assert found.text.startswith("against 1, whole logits: ")
    assert found.bytes <= 0


def test_activations_are_what_a_sequence_costs(preset: Any) -> None:
    found = preset("fsdp-8b")
    assert found[SEQ_LEN].cost.bytes == found[LOCAL].cost.bytes > 0
    assert "against 4096 and twice the sequences" in found[SEQ_LEN].cost.text
