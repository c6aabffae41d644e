"""Meters of ranks on this machine, whatever NVML does not tell."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import GIB, FakeError, FakeGpu, FakeNvml, slices

from engine.cards import driver
from engine.meters import figures
from engine.meters.network import NetworkMeters
from titancli.monitor import live
from titancli.monitor.live import LiveMeters
from titancli.monitor.run_state import Rank

GPM = {2: 93.5, 5: 61.0, 10: 40.25, 20: 3.0, 21: 5.0, 60: 7.0, 61: 11.0}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks may follow each other at once."""
    monkeypatch.setattr(figures, "SHORTEST_WINDOW_S", 0.0)


def eight(**more: Any) -> tuple[FakeGpu, ...]:
    """GPUs of which number i uses 10 * i GiB; CUDA may count them the other way round."""
    return tuple(
        FakeGpu(uuid=f"GPU-{index}", used=10 * index * GIB, cores=1000 + index, gpm=dict(GPM), **more)
        for index in range(8)
    )


Make = Callable[..., LiveMeters]


@pytest.fixture
def meters(tmp_path: Path) -> Iterator[Make]:
    """Makes meters of an NVML on a host without a network, and closes them in the end."""
    made: list[LiveMeters] = []

    def make(nvml: FakeNvml, **more: Any) -> LiveMeters:
        made.append(LiveMeters(nvml=nvml, network=NetworkMeters(tmp_path), first_window_s=0.0, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ranks_of(nvml: FakeNvml, **environ: str) -> list[Rank]:
    """The ranks of a run on the GPUs that CUDA shows them, as their events tell of them."""
    cards = driver(nvml, environ).cards
    return [Rank(rank=number, uuid=card.uuid, host="a-host", pid=1) for number, card in enumerate(cards)]


def test_c45_a_rank_shows_the_gpu_that_it_has(meters: Make) -> None:
    nvml = FakeNvml(*eight())
    ranks = ranks_of(nvml, CUDA_VISIBLE_DEVICES="4,6")
    found = meters(nvml).read(ranks)
    assert [found[rank]["used_bytes"] // GIB for rank in (0, 1)] == [40, 60]


def test_c45_cuda_that_counts_the_other_way_round_changes_nothing(meters: Make) -> None:
    nvml = FakeNvml(*eight())
    ranks = ranks_of(nvml, CUDA_VISIBLE_DEVICES="3,1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert [rank.uuid for rank in ranks] == ["GPU-4", "GPU-6"]
    found = meters(nvml).read(ranks)
    assert [found[rank]["used_bytes"] // GIB for rank in (0, 1)] == [40, 60]


def test_c45_a_missing_meter_is_null_with_its_reason_and_never_0(meters: Make) -> None:
    refuses = {"nvmlDeviceGetUtilizationRates": 3, "nvmlDeviceGetMemoryInfo": 4, "nvmlGpmQueryDeviceSupport": 3}
    refuses["nvmlDeviceGetTotalEnergyConsumption"] = 3
    nvml = FakeNvml(*eight(refuses=refuses, milliwatts=300_000))
    row = meters(nvml).read([Rank(rank=0, uuid="GPU-6")])[0]
    assert (row["sm_pct"], row["reasons"]["sm_pct"]) == (None, "not supported")
    assert (row["used_bytes"], row["reasons"]["used_bytes"]) == (None, "permission")
    assert row["capacity_bytes"] is None
    assert row["power_w"] == 300.0


@pytest.mark.parametrize("code", [9, 12, 18])
def test_c45_without_nvml_there_is_nothing_to_add(meters: Make, code: int) -> None:
    ranks = [Rank(rank=0, uuid="GPU-6"), Rank(rank=1)]
    assert meters(FakeNvml(init=FakeError(code, "Not Found"))).read(ranks) == {}


def test_links_are_in_per_cent_of_what_they_can_carry(meters: Make) -> None:
    nvml = FakeNvml(FakeGpu(uuid="GPU-a", gpm=GPM | {60: 90e9 / 2**20, 20: 6.3008e9 / 2**20}, counts={90: 26_562}))
    row = meters(nvml).read([Rank(rank=3, uuid="GPU-a")])[3]
    assert (row["link_pct"], row["dram_pct"], row["is_live"]) == (pytest.approx(20.0), 40.25, True)
    assert row["pcie_pct"] == pytest.approx(10.0)
    assert row["reasons"] == {
        "network_pct": "not supported",
        "network_rx_bytes_per_s": "not supported",
        "network_tx_bytes_per_s": "not supported",
    }


def test_what_the_config_says_of_links_counts(meters: Make) -> None:
    nvml = FakeNvml(FakeGpu(uuid="GPU-a", gpm=GPM | {60: 90e9 / 2**20}, counts={90: 26_562}))
    ours = meters(nvml, config={"cluster": {"nvlink_gbyte_per_s": 900}})
    assert ours.read([Rank(rank=0, uuid="GPU-a")])[0]["link_pct"] == pytest.approx(10.0)


@pytest.mark.parametrize("config", [{"cluster": 3}, {"cluster": {"nvlink_gbyte_per_s": "much"}}])
def test_a_config_that_is_broken_is_no_trouble(meters: Make, config: dict[str, Any]) -> None:
    assert 0 in meters(FakeNvml(*eight()), config=config).read([Rank(rank=0, uuid="GPU-6")])


def test_ranks_elsewhere_and_ranks_that_have_ended_are_left_out(meters: Make) -> None:
    ranks = [
        Rank(rank=0, uuid="GPU-6", reason_ended="completed"),
        Rank(rank=1, uuid="GPU-of-another-machine"),
        Rank(rank=2, host="another-machine", pid=os.getpid()),
        Rank(rank=3, host=socket.gethostname(), pid=2**31 - 2),
        Rank(rank=4, host=socket.gethostname(), pid=-7),
        Rank(rank=5),
    ]
    assert meters(FakeNvml(*eight())).read(ranks) == {}


def test_a_gpu_that_is_lost_is_here_and_says_so(meters: Make) -> None:
    row = meters(FakeNvml(*eight(lost="GPU is lost"))).read([Rank(rank=0, uuid="GPU-6")])[0]
    assert (row["used_bytes"], row["link_pct"]) == (None, None)
    assert {row["reasons"][key] for key in ("used_bytes", "sm_pct", "link_pct", "power_w")} == {"GPU lost"}


def test_a_rank_on_a_mig_instance_is_found_as_torch_names_it(meters: Make) -> None:
    card = slices("m", "1g.18gb", "2g.35gb")
    card.instances[1].used = 3 * GIB
    row = meters(FakeNvml(card)).read([Rank(rank=0, uuid="GPU-m-1")])[0]
    assert (row["used_bytes"], row["capacity_bytes"]) == (3 * GIB, 35 * GIB)


def test_a_rank_without_a_gpu_shows_its_process(meters: Make) -> None:
    rank = Rank(rank=2, host=socket.gethostname(), pid=os.getpid(), last_time=time.time())
    row = meters(FakeNvml()).read([rank])[2]
    assert row["used_bytes"] > 1 << 20
    assert row["cpu_pct"] >= 0.0
    assert {"sm_pct", "link_pct", "power_w"} & row.keys() == set()


def test_a_process_that_began_after_its_rank_spoke_is_not_it(meters: Make) -> None:
    rank = Rank(rank=2, host=socket.gethostname(), pid=os.getpid(), began=1.0, last_time=2.0)
    assert meters(FakeNvml()).read([rank]) == {}


def test_what_needs_two_looks_is_left_to_events_after_one(meters: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SHORTEST_WINDOW_S", 1e9)
    row = meters(FakeNvml(*eight())).read([Rank(rank=0, uuid="GPU-6")])[0]
    assert row.keys() & {"sm_pct", "link_pct", "pcie_pct"} == set()
    assert row["used_bytes"] == 60 * GIB


def test_a_driver_that_hangs_leaves_the_monitor_its_events(meters: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_PATIENCE_S", 0.01)
    nvml = FakeNvml(*eight())
    nvml.answers.clear()
    ours, ranks = meters(nvml), [Rank(rank=0, uuid="GPU-6")]
    assert [ours.read(ranks) for _ in range(3)] == [{}, {}, {}]
    nvml.answers.set()
    monkeypatch.setattr(live, "_PATIENCE_S", 10.0)
    assert ours.read(ranks)[0]["used_bytes"] == 60 * GIB


def test_nvml_is_opened_once_and_closed_in_the_end(meters: Make) -> None:
    nvml = FakeNvml(*eight())
    ours = meters(nvml)
    for _ in range(3):
        ours.read([Rank(rank=0, uuid="GPU-6")])
    assert nvml.open == 1
    ours.close()
    assert (nvml.open, [thread.name for thread in threading.enumerate()].count("titan-meters")) == (0, 0)
