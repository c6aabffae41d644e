"""What torchtitan holds: facts of its code, each as the bytes that it moves."""

from __future__ import annotations

from typing import Any

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.memory import Memory
from engine.planner.plan import plan
from engine.planner.stack import TORCHTITAN

TOKENS, DIM, HIDDEN, LAYERS, VOCAB = 8192, 4096, 14_336, 32, 128_256
BLOCK = 2 * DIM * DIM + 2 * DIM * 1024 + 3 * DIM * HIDDEN + 2 * DIM
COMPILED = {"compile__enable": True, "compile__components": ["model"]}
SELECTIVE = {"activation_checkpoint__mode": "selective"}


def memory(gpu: str = "h100-95", **more: Any) -> Memory:
    """The 8B shape on 8 GPUs, sequences of 8,192; keys with dots as `section__key`."""
    values = {"cluster.gpu": gpu, "cluster.gpus_per_node": 8, "model.flavor": "8B", "training.seq_len": TOKENS}
    config = with_values(Config(), values | {key.replace("__", "."): value for key, value in more.items()})
    return plan(config, resolve_cluster(config.cluster), stack=TORCHTITAN).memory


def reserved(gpu: str = "h100-95", **more: Any) -> int:
    """Reserved bytes of `memory`."""
    found = memory(gpu, **more).reserved_bytes
    assert found is not None
    return found


def test_weights_that_are_not_freed_are_all_blocks_but_the_last_more() -> None:
    kept = reserved(**SELECTIVE, parallelism__fsdp_reshard_after_forward="never") - reserved(**SELECTIVE)
    assert kept == (LAYERS - 1) * 2 * BLOCK


def test_the_compiler_drops_the_last_product_that_eager_recomputation_keeps() -> None:
    assert reserved(**SELECTIVE) - reserved(**SELECTIVE, **COMPILED) == LAYERS * 2 * TOKENS * DIM


def test_attention_is_computed_again_where_its_kernel_is_cudnns() -> None:
    kept = memory("h200", **SELECTIVE).activations_bytes
    again = memory("b200", **SELECTIVE).activations_bytes
    assert kept is not None
    assert again is not None
    # One of 32 layers makes it anew in the same moment.
    assert kept - again == (LAYERS - 1) * TOKENS * (2 * DIM + 4 * 32)


def test_full_recomputation_keeps_the_input_of_each_block() -> None:
    full = {"activation_checkpoint__mode": "full"}
    ten, twelve = (reserved(**full, **COMPILED, model__shape__n_layers=layers) for layers in (10, 12))
    sharded = 2 * 16 * BLOCK // 8
    assert abs(twelve - ten - 2 * 2 * TOKENS * DIM - sharded) < 4096


def test_an_eager_loss_has_three_float32_copies_and_the_hole_of_the_logits() -> None:
    eager = memory(**SELECTIVE, **COMPILED)
    assert eager.logits_bytes == 12 * TOKENS * VOCAB
    assert eager.moment == "loss"
    assert (eager.reserved_bytes or 0) - (eager.peak_bytes or 0) == 2 * TOKENS * VOCAB + (512 << 20)


def test_loss_parallel_has_four_float32_copies_of_its_piece() -> None:
    assert memory(parallelism__tensor_parallel_degree=4).logits_bytes == 16 * TOKENS * VOCAB // 4


def test_chunks_of_the_loss_share_all_but_two_copies() -> None:
    assert memory(training__loss_chunks=8).logits_bytes == int(6.5 * TOKENS * VOCAB)


def test_async_tp_holds_no_whole_streams_back() -> None:
    layout = {**SELECTIVE, **COMPILED, "parallelism__tensor_parallel_degree": 4}
    saved = reserved(**layout) - reserved(**layout, parallelism__enable_async_tensor_parallel=True)
    assert saved == 2 * 2 * TOKENS * DIM


def test_without_fsdp_weights_are_computed_with_as_they_are() -> None:
    layout = {"parallelism__tensor_parallel_degree": 8, **SELECTIVE}
    mixed = memory(**layout)
    whole = memory(**layout, training__mixed_precision_param="float32")
    assert mixed.activations_bytes == whole.activations_bytes


def test_a_pipeline_sums_whole_gradients_in_float32() -> None:
    layout = {"parallelism__pipeline_parallel_degree": 2, "training__local_batch_size": 2, **SELECTIVE}
    found = memory(**layout).communication_bytes
    assert found is not None
    assert found > 4 * 16 * BLOCK


def test_float8_gathers_halve_the_blocks_that_are_kept() -> None:
    never = {**SELECTIVE, **COMPILED, "parallelism__fsdp_reshard_after_forward": "never"}
    float8 = {"quantize__dense__float8__enable": True, "quantize__dense__float8__enable_fsdp_float8_all_gather": True}
    # And the buffer of one gather; the other one is the root's.
    assert reserved(**never) - reserved(**never, **float8) == (LAYERS + 1) * BLOCK


def test_no_peak_is_above_the_sum_of_its_parts() -> None:
    found = memory(activation_checkpoint__mode="full", training__seq_len=512)
    assert found.moment == "gradient of the embedding"
    parts = (found.activations_bytes or 0) + (found.logits_bytes or 0) + (found.communication_bytes or 0)
    assert (found.peak_bytes or 0) <= found.static_bytes + parts
