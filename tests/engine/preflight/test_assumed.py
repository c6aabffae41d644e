"""What a plan assumes, in the units in which it is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import Cluster as ClusterConfig
from engine.hardware import Cluster, resolve_cluster
from engine.preflight import assumed

BENCH = Path(__file__).parents[2] / "bench"


def cluster(gpu: str = "h200", nodes: int = 1, gpus_per_node: int = 8, **more: float) -> Cluster:
    return resolve_cluster(
        ClusterConfig(gpu=gpu, nodes=nodes, gpus_per_node=gpus_per_node, calibration="none", **more)  # type: ignore[arg-type]
    )


def test_what_was_measured_on_an_h200_is_within_a_tenth_of_what_is_assumed() -> None:
    found = assumed.rates(cluster())
    measured = {assumed.BF16: 664.85, assumed.FP8: 1245.5, assumed.MEMORY: 4.2581}
    assert found == pytest.approx(measured, rel=0.1)


def test_the_link_of_two_h200_is_within_a_fifth_of_what_is_assumed() -> None:
    rows = json.loads((BENCH / "collectives_h200x2.json").read_text("utf-8"))["alone"]
    (row,) = (
        each
        for each in rows
        if (each["collective"], each["dtype"], each["bytes"]) == ("all_reduce", "torch.bfloat16", 256 << 20)
    )
    found = assumed.link_rates(cluster(gpus_per_node=2), reduced_bytes=256 << 20)
    assert assumed.sent_gbyte_per_s(2, row["bytes"], row["s"]) == pytest.approx(found["node"], rel=0.2)


def test_figures_of_the_config_are_assumed() -> None:
    slower = assumed.rates(cluster(bf16_tflops=500.0, hbm_tbyte_per_s=2.4))
    usual = assumed.rates(cluster())
    # A product's rate follows, but for what does not depend on it: ramps and starts.
    assert slower[assumed.BF16] == pytest.approx(usual[assumed.BF16] * 500 / 989.4, rel=0.02)
    assert slower[assumed.MEMORY] == pytest.approx(usual[assumed.MEMORY] / 2)


def test_a_gpu_without_float8_has_no_rate_of_it() -> None:
    assert assumed.FP8 not in assumed.rates(cluster("a100-80"))


def test_kinds_of_links_are_those_that_a_run_has() -> None:
    assert assumed.link_rates(cluster(gpus_per_node=1), reduced_bytes=1 << 28) == {}
    assert set(assumed.link_rates(cluster(gpus_per_node=1, nodes=2), reduced_bytes=1 << 28)) == {"nodes", "all"}
    both = assumed.link_rates(cluster(nodes=2), reduced_bytes=1 << 28)
    assert set(both) == {"node", "pair", "nodes", "all"}
    # 400 Gbit/s for each GPU, of which a card carries 83 %.
    assert both["nodes"] == pytest.approx(41.5, rel=0.1)
    assert both["nodes"] < both["pair"] < both["node"]


def test_on_a_cpu_nothing_is_assumed() -> None:
    here = cluster("cpu", gpus_per_node=2)
    assert (assumed.rates(here), assumed.link_rates(here, reduced_bytes=1 << 20)) == ({}, {})
