"""What kernels and links of this machine sustain, in small."""

from __future__ import annotations

import time

import pytest
import torch
from gloo_pool import GlooPool

from engine.calibration import RATES
from engine.measure import Sizes, about, gathered_s, rates, seconds

SMALL = Sizes(copied_bytes=1 << 20, seq_len=64, heads=2, kv_heads=1, gathered_bytes=1 << 16, lasts_s=0.0)


def test_a_cpu_has_every_rate_but_that_of_float8() -> None:
    found = dict(rates(torch.device("cpu"), SMALL))
    assert found.keys() == RATES.keys() - {"fp8_tflops", "nvlink_gbyte_per_s"}
    assert all(0 < value < 1e3 for value in found.values())


def test_seconds_are_those_of_one_call() -> None:
    assert 0.01 < seconds(lambda: time.sleep(0.01), lasts_s=0.0) < 0.1


def test_torch_says_what_it_is() -> None:
    found = about()
    assert found["torch"] == torch.__version__
    assert (found["trouble"] is None) == torch.cuda.is_available()


def gathered() -> float:
    """Seconds of an all-gather on this rank."""
    return gathered_s(torch.device("cpu"), SMALL.gathered_bytes)


@pytest.mark.world
def test_a_gather_among_processes_takes_time(gloo: GlooPool) -> None:
    assert all(0 < found_s < 10 for found_s in gloo.run(2, gathered))
