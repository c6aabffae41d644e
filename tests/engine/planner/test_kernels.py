"""Seconds of single kernels: what size, precision, hardware and implementation change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.hardware import GPUS, Cluster, cpu_gpu
from engine.planner.kernels import Kernels, kernels_of
from engine.planner.stack import TITAN, TORCHTITAN, Stack


def kernels(gpu: str = "h200", stack: Stack = TITAN, **more: float) -> Kernels:
    """The rates of one GPU of the table, with some of them overridden."""
    found = kernels_of(cluster(gpu, **more), stack)
    assert found is not None
    return found


def cluster(gpu: str = "h200", **more: float) -> Cluster:
    """One such GPU."""
    return Cluster(
        gpu=replace(GPUS[gpu], **more),  # type: ignore[arg-type]
        nodes=1,
        gpus_per_node=1,
        network_gbit_per_s_per_gpu=None,
    )


def test_a_cpu_that_nobody_measured_has_no_rates():
    cpu = Cluster(gpu=cpu_gpu(1 << 36, 2), nodes=1, gpus_per_node=2, network_gbit_per_s_per_gpu=None)
    assert kernels_of(cpu, TITAN) is None


def test_a_measured_rate_stands_before_the_usual_share():
    slow, fast = kernels(sustained_bf16_flops_per_s=300e12), kernels(sustained_bf16_flops_per_s=600e12)
    assert slow.matmul_s(65_536, 8192, 8192) == pytest.approx(2 * fast.matmul_s(65_536, 8192, 8192), rel=0.03)


def test_a_cpu_with_measured_rates_has_kernels():
    measured = replace(cpu_gpu(1 << 36, 2), sustained_bf16_flops_per_s=1e11, sustained_hbm_bytes_per_s=1e10)
    cpu = Cluster(gpu=measured, nodes=1, gpus_per_node=2, network_gbit_per_s_per_gpu=None)
    found = kernels_of(cpu, TITAN)
    assert found is not None
    assert found.memory_s(1e10) == pytest.approx(1.0)


def test_products_of_the_8b_shape_reach_what_was_measured_on_h200():
    k = kernels()
    layers = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)]
    flops = sum(2 * 8192 * k_ * n for k_, n in layers)
    assert flops / sum(k.matmul_s(8192, k_, n) for k_, n in layers) == pytest.approx(745e12, rel=0.04)


def test_twice_the_tokens_of_a_large_product_take_twice_as_long():
    k = kernels()
    assert k.matmul_s(32_768, 4096, 14336) == pytest.approx(2 * k.matmul_s(16_384, 4096, 14336), rel=0.03)


def test_a_product_that_leaves_most_multiprocessors_idle_takes_no_less_time_than_one_wave():
    k = kernels()
    assert k.matmul_s(128, 4096, 256) == pytest.approx(k.matmul_s(1024, 4096, 256), rel=0.25)


def test_a_shallow_product_reaches_less_of_the_rate():
    k = kernels()
    assert k.matmul_s(8192, 512, 8192) > 1.1 * k.matmul_s(8192, 8192, 8192) / 16


@pytest.mark.parametrize(("precision", "times"), [("float8", 2.0), ("float32", 1 / 17)])
def test_precision_changes_the_rate_of_large_products(precision, times):
    k = kernels()
    seconds = k.matmul_s(65_536, 14336, 4096), k.matmul_s(65_536, 14336, 4096, precision=precision)
    assert seconds[0] / seconds[1] == pytest.approx(times, rel=0.12)


def test_rowwise_products_are_slower_than_tensorwise():
    k = kernels()
    rowwise = k.matmul_s(8192, 4096, 14336, precision="float8_rowwise")
    assert rowwise > 1.2 * k.matmul_s(8192, 4096, 14336, precision="float8")


def test_attention_of_as_many_tokens_grows_with_the_sequence():
    k = kernels()
    long, short = (k.attention_forward_s(65_536, length, 32, 128) for length in (65_536, 32_768))
    assert long == pytest.approx(2 * short, rel=0.05)


def test_attention_of_the_8b_shape_takes_what_was_measured_on_h200():
    k = kernels()
    both = k.attention_forward_s(8192, 8192, 32, 128) + k.attention_backward_s(8192, 8192, 32, 128)
    assert both == pytest.approx(3.6e-3, rel=0.08)


def test_flash_attention_takes_almost_twice_as_long_on_hopper():
    flash, cudnn = kernels(stack=TORCHTITAN), kernels()
    times = flash.attention_forward_s(8192, 8192, 32, 128) / cudnn.attention_forward_s(8192, 8192, 32, 128)
    assert times == pytest.approx(6.8 / 3.6, rel=0.08)


def test_ampere_has_one_attention_for_both():
    flash, cudnn = kernels("a100-80", TORCHTITAN), kernels("a100-80")
    assert flash.attention_forward_s(8192, 8192, 32, 128) == cudnn.attention_forward_s(8192, 8192, 32, 128)


def test_a_500_w_card_is_slower_in_products_and_in_attention():
    full, capped = kernels("h100-80"), kernels("h100-96")
    assert capped.matmul_s(8192, 4096, 14336) > 1.2 * full.matmul_s(8192, 4096, 14336)
    assert capped.attention_forward_s(8192, 8192, 32, 128) > 1.2 * full.attention_forward_s(8192, 8192, 32, 128)


def test_elementwise_kernels_reach_less_than_a_copy():
    k = kernels()
    assert k.elementwise_s(1e9) > k.memory_s(1e9)
