"""What Megatron holds: facts of its code, each as the bytes that it moves."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.memory import Memory
from engine.planner.plan import plan
from engine.planner.stack import MEGATRON

PARAMETERS = 8_030_261_248
MATRICES = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336


def memory(**more: Any) -> Memory:
    """The 8B shape on 8 B200, sequences of 4,096; keys with dots as `section__key`."""
    values = {"cluster.gpu": "b200", "cluster.gpus_per_node": 8, "model.flavor": "8B", "training.seq_len": 4096}
    config = with_values(Config(), values | {key.replace("__", "."): value for key, value in more.items()})
    return plan(config, resolve_cluster(config.cluster), stack=MEGATRON).memory


def test_weights_and_gradients_are_whole_on_every_data_rank() -> None:
    found = memory()
    assert found.params_bytes == 2 * PARAMETERS
    # In float32, and what stands in for gradients that products have added up already.
    assert found.grads_bytes == 4 * PARAMETERS + 2 * (MATRICES + 128_256 * 4096 + 4096)


@pytest.mark.parametrize("axis", ["data_parallel_shard_degree", "context_parallel_degree"])
def test_optimizer_states_are_shared_out_over_data_and_context_ranks(axis: str) -> None:
    layout = {"parallelism__data_parallel_shard_degree": -1, f"parallelism__{axis}": 8}
    assert memory(**layout).optimizer_bytes == 12 * PARAMETERS // 8


def test_float32_has_no_second_copy_of_the_weights() -> None:
    assert memory(training__mixed_precision_param="float32").optimizer_bytes == 8 * PARAMETERS // 8


def test_tensor_ranks_share_all_that_a_block_keeps() -> None:
    one, two = (memory(parallelism__tensor_parallel_degree=degree, model__shape__n_layers=16) for degree in (1, 2))
    again = [memory(parallelism__tensor_parallel_degree=d, model__shape__n_layers=8) for d in (1, 2)]
    kept = [
        (more.activations_bytes or 0) - (less.activations_bytes or 0)
        for more, less in zip((one, two), again, strict=True)
    ]
    assert kept[0] == pytest.approx(2 * kept[1], rel=1e-4)


def test_full_recomputation_keeps_the_input_of_each_block() -> None:
    full = {"activation_checkpoint__mode": "full"}
    more, less = (memory(**full, model__shape__n_layers=layers).activations_bytes for layers in (16, 8))
    assert more is not None
    assert less is not None
    assert more - less == 8 * 2 * 4096 * 4096


def test_logits_are_held_twice_in_bfloat16_and_in_float32() -> None:
    assert memory().logits_bytes == (2 + 4) * 4096 * 128_256


def test_the_first_stage_of_a_pipeline_holds_as_many_microbatches_as_there_are_stages() -> None:
    layout = {"parallelism__pipeline_parallel_degree": 4, "activation_checkpoint__mode": "full"}
    eight, four = (memory(**layout, training__local_batch_size=batch) for batch in (8, 4))
    assert eight.activations_bytes == four.activations_bytes


def test_float8_keeps_inputs_of_products_in_a_byte_and_weights_twice_more() -> None:
    plain, float8 = memory(), memory(quantize__dense__float8__enable=True)
    assert float8.params_bytes - plain.params_bytes == 2 * 32 * (MATRICES + 2 * 4096)
    assert (plain.activations_bytes or 0) > (float8.activations_bytes or 0)
