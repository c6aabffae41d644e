"""Tokens, speed and MFU."""

from __future__ import annotations

import pytest
from synthetic import tiny

from engine.metrics import Meter, Speed
from engine.planner.plan import plan


def speeds(meter: Meter, step_seconds: list[float], *, tokens: int, slots: int, log_freq: int) -> list[Speed]:
    """What is reported at the first step and every `log_freq`, for steps of these lengths from second 0."""
    now_s, found = 0.0, []
    for step, seconds in enumerate(step_seconds, 1):
        now_s += seconds
        meter.add(tokens=tokens, slots=slots, data_s=0.25)
        if step == 1 or step % log_freq == 0:
            found.append(meter.report(now_s))
    return found


def cpu_meter(processes: int = 1) -> Meter:
    """A meter of a run on CPUs that began at second 0."""
    config = tiny(processes)
    return Meter(config, plan(config), now_s=0.0)


def test_c48_the_rate_leaves_step_1_and_padding_out() -> None:
    first, last = speeds(cpu_meter(), [20, 1, 1, 1, 1], tokens=750, slots=1000, log_freq=5)
    assert (last.slots_per_s, last.tokens_per_s) == (1000, 750)
    assert (first.slots_per_s, first.tokens_per_s, first.tokens_per_s_per_gpu) == (None, None, None)


def test_c48_a_rate_counts_the_whole_world_and_is_shared_out_over_gpus() -> None:
    config = tiny(
        8,
        parallelism__tensor_parallel_degree=2,
        parallelism__context_parallel_degree=2,
        training__local_batch_size=4,
    )
    meter = Meter(config, plan(config), now_s=0.0)
    _, second = speeds(meter, [2, 2], tokens=16_384, slots=16_384, log_freq=1)
    assert (second.tokens_per_s, second.tokens_per_s_per_gpu) == (8192, 1024)


def test_time_that_is_left_out_slows_no_step() -> None:
    meter = cpu_meter()
    meter.add(tokens=8, slots=8, data_s=0.0)
    meter.report(20.0)
    meter.add(tokens=8, slots=8, data_s=0.0)
    meter.leave_out(100.0)
    assert meter.report(122.0).tokens_per_s == 4


def test_step_time_is_the_mean_of_the_window_and_step_1_is_told_too() -> None:
    first, last = speeds(cpu_meter(), [20, 1, 2, 3], tokens=1, slots=1, log_freq=4)
    assert (first.step_s, last.step_s, last.data_s) == (20, 2, 0.25)


def test_c47_mfu_states_slots_times_flops_over_the_bf16_peak() -> None:
    shape = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 128, "vocab_size": 256}
    config = tiny(
        1,
        cluster__gpu="a100-80",
        training__seq_len=32,
        training__mixed_precision_param="bfloat16",
        **{f"model__shape__{key}": value for key, value in shape.items()},
    )
    meter = Meter(config, plan(config), now_s=0.0)
    _, second = speeds(meter, [1, 1], tokens=900_000, slots=1_000_000, log_freq=1)
    assert second.mfu_pct == pytest.approx(0.1890, abs=5e-5)


def test_mfu_is_unknown_on_a_cpu() -> None:
    assert speeds(cpu_meter(), [1, 1], tokens=1, slots=1, log_freq=1)[1].mfu_pct is None


def test_mfu_is_unknown_in_float32() -> None:
    config = tiny(1, cluster__gpu="h200")
    meter = Meter(config, plan(config), now_s=0.0)
    assert speeds(meter, [1, 1], tokens=1, slots=1, log_freq=1)[1].mfu_pct is None
