"""Seconds that a pipeline rank computes: what each setting adds or takes away."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.activations import Work
from engine.planner.compute import StageCompute, gather_copies_s, optimizer_s, reduce_copies_s, stage_compute
from engine.planner.kernels import Kernels, kernels_of
from engine.planner.recompute import Recompute
from engine.planner.stack import TITAN, TORCHTITAN, Stack
from engine.shapes import shape_of
from tests.bench.published import foundry, own
from tests.bench.published.as_run import plan_as_run
from tests.bench.published.case import Case

FLOAT8 = "quantize.dense.float8.enable"
NONE, SELECTIVE, FULL = Recompute(), Recompute(mode="selective"), Recompute(mode="full")


def config_of(**more: Any) -> Config:
    """The 8B shape on H200; keys with dots as `section__key`."""
    values = {"cluster.gpu": "h200", "model.flavor": "8B", "training.seq_len": 8192, "compile.enable": True}
    return with_values(Config(), values | {key.replace("__", "."): value for key, value in more.items()})


def rates(config: Config, stack: Stack = TITAN) -> Kernels:
    """The kernels of its GPU."""
    found = kernels_of(resolve_cluster(config.cluster), stack)
    assert found is not None
    return found


def compute(
    config: Config,
    *,
    layers: int | tuple[int, ...] = 4,
    recompute: Recompute = NONE,
    ends: bool = False,
    stack: Stack = TITAN,
    **work: Any,
) -> StageCompute:
    """One microbatch of one sequence."""
    compiled = config.compile.enable
    values = {"tokens": 8192, "compiled": compiled, "compiled_loss": compiled} | work
    return stage_compute(
        config,
        Work(shape=shape_of(config.model), **values),
        recompute,
        layers=layers,
        has_embedding=ends,
        has_head=ends,
        kernels=rates(config, stack),
        stack=stack,
    )


def test_layers_add_up():
    config = config_of()
    assert compute(config, layers=8).total_s == pytest.approx(2 * compute(config, layers=4).total_s)


def test_layers_by_number_and_by_index_are_one():
    config = config_of()
    assert compute(config, layers=3) == compute(config, layers=(5, 6, 7))


def test_backward_of_a_block_takes_twice_its_forward_or_a_little_more():
    found = compute(config_of())
    assert 2.0 < found.backward_s / found.forward_s < 2.5


def test_the_weights_gradients_take_about_as_long_as_the_inputs():
    found = compute(config_of())
    assert 0.5 < found.weight_gradient_s / found.input_gradient_s < 1.0


def test_head_and_loss_take_what_their_vocabulary_asks_for():
    small = config_of(model__shape__vocab_size=16_032)
    ends, fewer = (compute(config, layers=0, ends=True).total_s for config in (config_of(), small))
    assert ends == pytest.approx(8 * fewer, rel=0.15)


def test_two_tensor_ranks_halve_products_but_not_the_casts_of_what_is_whole():
    one, two = compute(config_of()), compute(config_of(), tp=2)
    assert 0.5 < two.total_s / one.total_s < 0.56


def test_context_ranks_share_attention_evenly_with_head_tail_balance():
    whole, half = compute(config_of()), compute(config_of(), tokens=4096, cp=2)
    assert half.total_s == pytest.approx(whole.total_s / 2, rel=0.03)


def test_without_balance_the_last_context_rank_attends_to_most():
    config = config_of(parallelism__context_parallel_load_balance="none")
    balanced = compute(config_of(), tokens=4096, cp=2).total_s
    assert compute(config, tokens=4096, cp=2).total_s > 1.04 * balanced


def test_async_tensor_parallel_computes_products_in_pieces():
    plain = {"parallelism__tensor_parallel_degree": 8}
    whole = compute(config_of(**plain), tp=8).forward_s
    assert compute(config_of(**plain, parallelism__enable_async_tensor_parallel=True), tp=8).forward_s > whole


def test_async_tensor_parallel_leaves_float8_whole_in_titan():
    values = {"parallelism__tensor_parallel_degree": 8, FLOAT8: True}
    asked = config_of(**values, parallelism__enable_async_tensor_parallel=True)
    assert compute(asked, tp=8) == compute(config_of(**values), tp=8)


def test_no_recomputation_costs_nothing():
    assert compute(config_of()).recompute_s == 0.0


def test_full_recomputation_is_forward_without_the_last_product():
    found = compute(config_of(), recompute=FULL)
    last = rates(config_of()).matmul_s(8192, 14336, 4096)
    assert found.recompute_s == pytest.approx(found.forward_s - 4 * last)


def test_selective_recomputation_costs_a_tenth_of_full():
    selective, full = (compute(config_of(), recompute=mode).recompute_s for mode in (SELECTIVE, FULL))
    assert 0.05 < selective / full < 0.15


def test_torchtitan_computes_every_second_product_again():
    titan, peer = (compute(config_of(), recompute=SELECTIVE, stack=stack) for stack in (TITAN, TORCHTITAN))
    k = rates(config_of(), TORCHTITAN)
    products = k.matmul_s(8192, 4096, 1024) + k.matmul_s(8192, 4096, 4096) + k.matmul_s(8192, 4096, 14336)
    assert peer.recompute_s - titan.recompute_s == pytest.approx(4 * products)


def test_every_second_layer_recomputes_half_of_them():
    config, second = config_of(), Recompute(mode="selective", every=2)
    half, full = compute(config, layers=(0, 1, 2, 3), recompute=second), compute(config, recompute=FULL)
    assert half.recompute_s == pytest.approx(full.recompute_s / 2)


@pytest.mark.parametrize("budget", [0.0, 0.25, 0.75, 1.0])
def test_a_memory_budget_lies_between_full_and_none(budget):
    found = compute(config_of(), recompute=Recompute(mode="memory_budget", budget=budget)).recompute_s
    full = compute(config_of(), recompute=FULL).recompute_s
    assert 0.0 <= found <= full
    assert (found == 0.0) == (budget == 1.0)


def test_compiling_saves_a_tenth_of_the_8b_shape():
    eager, compiled = compute(config_of(compile__enable=False)).total_s, compute(config_of()).total_s
    assert 1.03 < eager / compiled < 1.12


def test_older_eager_norms_cost_torchtitan_more():
    eager = config_of(compile__enable=False)
    assert compute(eager, stack=TORCHTITAN).total_s > 1.05 * compute(eager).total_s


def test_float8_takes_a_quarter_off_but_not_half():
    plain, low = compute(config_of()).total_s, compute(config_of(**{FLOAT8: True})).total_s
    assert 1.15 < plain / low < 1.6


def test_rowwise_float8_is_about_as_fast_as_bfloat16():
    rowwise = config_of(**{FLOAT8: True}, quantize__dense__float8__recipe_name="rowwise")
    assert 0.92 < compute(config_of()).total_s / compute(rowwise).total_s < 1.12


def test_eager_float8_pays_for_its_casts():
    eager = {"compile__enable": False}
    assert compute(config_of(**eager, **{FLOAT8: True})).total_s > compute(config_of(**{FLOAT8: True})).total_s


def test_float8_in_no_linear_layer_changes_nothing():
    filtered = config_of(**{FLOAT8: True}, quantize__dense__float8__filter_fqns=("attention", "feed_forward", "output"))
    assert compute(filtered, ends=True) == compute(config_of(), ends=True)


def test_the_head_is_in_float8_only_without_its_filter():
    low = config_of(**{FLOAT8: True}, quantize__dense__float8__filter_fqns=())
    high = config_of(**{FLOAT8: True})
    assert compute(low, layers=0, ends=True).total_s < compute(high, layers=0, ends=True).total_s


def test_emulated_float8_gains_nothing():
    emulated = config_of(**{FLOAT8: True}, quantize__dense__float8__emulate=True)
    assert compute(emulated).total_s > compute(config_of()).total_s


def test_float32_is_more_than_eight_times_slower():
    single = config_of(training__mixed_precision_param="float32")
    assert compute(single, width_bytes=4).total_s > 8 * compute(config_of()).total_s


def test_pieces_of_the_loss_cost_sums_of_the_heads_gradient():
    whole, pieces = (compute(config_of(), layers=0, ends=True, loss_chunks=chunks).total_s for chunks in (1, 8))
    assert 0.005 < pieces - whole < 0.03


def test_a_small_block_takes_as_long_as_its_kernels_take_to_start():
    eager = config_of(model__flavor="debugmodel", compile__enable=False)
    assert compute(eager, tokens=16).forward_s == pytest.approx(compute(eager, tokens=32).forward_s)


@pytest.mark.parametrize(
    ("gradient", "copy_bytes", "moved"), [("bfloat16", 2, 28 + 2), ("float32", 2, 30 + 4), ("float32", 0, 28 + 4)]
)
def test_one_pass_of_adam_moves_what_it_reads_and_writes_and_the_norm_reads(gradient, copy_bytes, moved):
    config = config_of()
    found = optimizer_s(config, 10**9, rates(config), gradient=gradient, copy_bytes=copy_bytes)
    assert found == pytest.approx(rates(config).lists_s(moved * 1e9))


@pytest.mark.parametrize(("key", "value"), [("optimizer__implementation", "foreach"), ("optimizer__name", "SGD")])
def test_kernels_of_torch_want_gradients_cast_and_leave_copies_to_another_pass(key, value):
    config = config_of(**{key: value})
    k = rates(config)
    plain = optimizer_s(config, 10**9, k)
    whole = optimizer_s(config, 10**9, k, gradient="bfloat16", copy_bytes=2)
    # Cast 2 + 4, copied 4 + 2, and the norm reads 2 bytes less.
    assert whole - plain == pytest.approx(k.lists_s(10e9))


def test_adam_moves_seven_numbers_a_weight_and_one_for_the_norm():
    config = config_of()
    assert optimizer_s(config, 10**9, rates(config)) == pytest.approx(rates(config).lists_s(32e9))


def test_no_clipping_saves_a_pass():
    config = config_of(training__max_norm=0.0)
    assert optimizer_s(config, 10**9, rates(config)) == pytest.approx(rates(config).lists_s(28e9))


def test_torchtitan_scales_gradients_in_a_pass_of_its_own():
    config = config_of()
    assert optimizer_s(config, 10**9, rates(config), TORCHTITAN) == pytest.approx(rates(config).lists_s(40e9))


def test_sgd_has_no_states_to_move():
    config = config_of(optimizer__name="SGD")
    assert optimizer_s(config, 10**9, rates(config)) < 0.6 * optimizer_s(config_of(), 10**9, rates(config))


def test_weights_gathered_in_float8_are_copied_at_half_the_bytes():
    plain = config_of()
    low = config_of(**{FLOAT8: True}, quantize__dense__float8__enable_fsdp_float8_all_gather=True)
    k = rates(plain)
    seconds = [gather_copies_s(config, 1e9, fsdp=64, kernels=k) for config in (low, plain)]
    assert seconds[0] == pytest.approx(seconds[1] / 2, rel=0.1)


def test_a_mesh_of_one_copies_what_it_need_not():
    config = config_of()
    k = rates(config)
    assert gather_copies_s(config, 1e9, fsdp=1, kernels=k) > gather_copies_s(config, 1e9, fsdp=8, kernels=k)
    assert reduce_copies_s(config, 1e9, fsdp=1, kernels=k) > reduce_copies_s(config, 1e9, fsdp=8, kernels=k)


def test_eighteen_own_runs_on_h200_are_predicted_as_they_ran_within_five_percent():
    # Fourteen of them on one GPU, whose weights FSDP held then.
    found = errors(own.cases())
    assert max(map(abs, found)) < 0.05
    assert mean(map(abs, found)) < 0.02


def test_twenty_later_runs_on_h200_are_predicted_as_they_ran_within_five_percent():
    found = errors(own.held_out())
    assert len(found) == 20
    assert max(map(abs, found)) < 0.05
    assert mean(map(abs, found)) < 0.02


def test_runs_of_llm_foundry_are_predicted_within_eight_percent_on_average():
    found = errors(foundry.cases())
    assert mean(map(abs, found)) < 0.08
    assert sum(abs(error) <= 0.2 for error in found) > 0.9 * len(found)


def errors(cases: list[Case]) -> list[float]:
    """Predicted speed over measured, less one, of runs as they ran (as_run)."""
    found = []
    for case in cases:
        predicted = plan_as_run(case).tokens_per_s_per_gpu
        assert predicted is not None
        assert case.tokens_per_s_per_gpu is not None
        found.append(predicted / case.tokens_per_s_per_gpu - 1)
    return found
