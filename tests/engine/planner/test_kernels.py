"""Seconds of single kernels: what size, precision, hardware and implementation change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.hardware import GPUS, Cluster, cpu_gpu
from engine.planner.kernels import Kernels, kernels_of
from engine.planner.stack import TITAN, TORCHTITAN, Stack

MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "bench" / "kernels_h200.json").read_text(encoding="utf-8")
)


def sizes(row: dict[str, Any]) -> tuple[int, int, int]:
    """m, k and n of what a row multiplies: of the layer's output, or of one of its gradients."""
    m, k, n = row["m"], row["k"], row["n"]
    return {"output": (m, k, n), "input_gradient": (m, n, k), "weight_gradient": (n, m, k)}[row["way"]]


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


def test_a_calibration_of_h200_changes_little():
    usual = kernels()
    measured = kernels(
        sustained_bf16_flops_per_s=657e12,
        sustained_fp8_flops_per_s=1280e12,
        sustained_fp32_flops_per_s=50e12,
        sustained_attention_flops_per_s=533e12,
        sustained_hbm_bytes_per_s=4.27e12,
    )
    assert measured.bf16_flops_per_s == pytest.approx(usual.bf16_flops_per_s, rel=0.02)
    assert measured.fp8_flops_per_s == pytest.approx(usual.fp8_flops_per_s, rel=0.02)
    assert measured.fp32_flops_per_s == pytest.approx(usual.fp32_flops_per_s, rel=0.02)
    assert measured.attention_forward_flops_per_s == pytest.approx(usual.attention_forward_flops_per_s, rel=0.06)
    assert measured.hbm_bytes_per_s == pytest.approx(usual.hbm_bytes_per_s, rel=0.02)


def test_a_cpu_with_measured_rates_has_kernels():
    measured = replace(cpu_gpu(1 << 36, 2), sustained_bf16_flops_per_s=1e11, sustained_hbm_bytes_per_s=1e10)
    cpu = Cluster(gpu=measured, nodes=1, gpus_per_node=2, network_gbit_per_s_per_gpu=None)
    found = kernels_of(cpu, TITAN)
    assert found is not None
    assert found.memory_s(1e10) == pytest.approx(1.0)
    assert found.matmul_s(512, 512, 512) == pytest.approx(2 * 512**3 / 1e11, rel=0.15)


def test_products_take_what_was_measured_on_h200():
    # Measured in a row, where power limits them; the rate is that of training, where they are 4 % faster. Below 2,048
    # tokens and for outputs narrower than a tile kernels differ by more than this model says.
    k = kernels()
    rows = [row for row in MEASURED["products"] if row["m"] >= 2048 and min(row["k"], row["n"]) >= 1024]
    errors = [k.matmul_s(*sizes(row)) / row["s"] - 1 for row in rows]
    assert sum(errors) / len(errors) == pytest.approx(-0.04, abs=0.03)
    assert sum(abs(error + 0.04) < 0.08 for error in errors) > 0.9 * len(errors)


def test_small_products_take_within_a_third_of_what_was_measured_on_h200():
    # A product of less than 40 us is shorter than its start from the CPU was.
    k = kernels()
    rows = [row for row in MEASURED["products"] if row["m"] < 2048 and row["s"] > 40e-6]
    assert all(0.67 < k.matmul_s(*sizes(row)) / row["s"] < 1.4 for row in rows)


def test_float8_products_take_what_was_measured_on_h200():
    k = kernels()
    rows = [row for row in MEASURED["float8_products"] if row["fast_accumulation"] and row["s"] > 100e-6]
    errors = [k.matmul_s(row["m"], row["k"], row["n"], precision="float8") / row["s"] - 1 for row in rows]
    assert sum(errors) / len(errors) == pytest.approx(-0.04, abs=0.04)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("kernel", "stack"), [("cudnn", TITAN), ("flash", TORCHTITAN)])
def test_attention_takes_what_was_measured_on_h200(kernel, stack, direction):
    k = kernels(stack=stack)
    seconds = k.attention_forward_s if direction == "forward" else k.attention_backward_s
    rows = [row for row in MEASURED["attention"] if row["kernel"] == kernel and row["causal"]]
    errors = [
        seconds(row["batch"] * row["seq_len"], row["seq_len"], row["heads"], row["head_dim"]) / row[f"{direction}_s"]
        - 1
        for row in rows
    ]
    assert abs(sum(errors) / len(errors)) < 0.08
    assert sum(abs(error) < 0.2 for error in errors) > 0.85 * len(errors)


def test_twice_the_tokens_of_a_large_product_take_twice_as_long():
    k = kernels()
    assert k.matmul_s(32_768, 4096, 14336) == pytest.approx(2 * k.matmul_s(16_384, 4096, 14336), rel=0.03)


def test_a_product_that_leaves_most_multiprocessors_idle_takes_no_less_time_than_one_wave():
    k = kernels()
    assert k.matmul_s(128, 4096, 256) == pytest.approx(k.matmul_s(1024, 4096, 256), rel=0.25)


def test_a_shallow_product_reaches_less_of_the_rate():
    k = kernels()
    assert k.matmul_s(8192, 512, 8192) > 1.1 * k.matmul_s(8192, 8192, 8192) / 16


@pytest.mark.parametrize(("precision", "times"), [("float8", 1.9), ("float32", 1 / 14.5)])
def test_precision_changes_the_rate_of_large_products(precision, times):
    k = kernels()
    seconds = k.matmul_s(65_536, 14336, 4096), k.matmul_s(65_536, 14336, 4096, precision=precision)
    assert seconds[0] / seconds[1] == pytest.approx(times, rel=0.12)


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


def test_a_norm_that_finds_a_scale_takes_no_longer_for_twice_the_tokens():
    k, stream_bytes = kernels(), 8192 * 4096 * 2
    took = [k.norm_gradient_s(times * 10 * stream_bytes, finds_largest=True) for times in (1, 2, 8)]
    assert took[0] == took[1] == pytest.approx(1.8e-3)
    assert k.norm_gradient_s(10 * stream_bytes) < took[0]
    assert took[0] < took[2] == k.norm_gradient_s(8 * 10 * stream_bytes)
