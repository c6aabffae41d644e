"""The meters of one GPU, each on its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, slices

from engine.meters.figures import Figures
from engine.meters.gpu import GPU_METERS, GpuMeters
from engine.nvml import open_nvml

MIB = 1 << 20
GPM = {2: 93.5, 5: 61.0, 10: 40.25, 20: 3.0, 21: 5.0, 60: 7.0, 61: 11.0}
HOPPER: dict[str, Any] = {"gpm": GPM, "used": 60 * GIB, "milliwatts": 650_000, "millijoules": 1000}
AMPERE: dict[str, Any] = HOPPER | {"gpm": None, "busy": 88, "counts": {138: 0, 139: 0}, "pcie_kb": (2000, 3000)}


def meters(gpu: FakeGpu, **more: Any) -> GpuMeters:
    """Of a GPU whose clock goes on by a second with every asking."""
    ticks = itertools.count()
    return GpuMeters(open_nvml(FakeNvml(gpu, **more)), gpu.uuid, clock=lambda: float(next(ticks)))


def twice(gpu: FakeGpu, **more: Any) -> Figures:
    found = meters(gpu, **more)
    found.read()
    return found.read()


def test_hopper_tells_everything_between_two_samples() -> None:
    figures = twice(FakeGpu(uuid="GPU-a", **HOPPER))
    assert figures.reasons == {}
    assert figures.values == {
        "sm_pct": 93.5,
        "tensor_pct": 61.0,
        "dram_pct": 40.25,
        "nvlink_rx_bytes_per_s": 7 * MIB,
        "nvlink_tx_bytes_per_s": 11 * MIB,
        "pcie_rx_bytes_per_s": 5 * MIB,
        "pcie_tx_bytes_per_s": 3 * MIB,
        "power_w": 0.0,
        "used_bytes": 60 * GIB,
        "capacity_bytes": 143_771 << 20,
    }


def test_the_first_look_has_what_needs_no_second_one() -> None:
    figures = meters(FakeGpu(uuid="GPU-a", **HOPPER)).read()
    assert {name for name, value in figures.values.items() if value is not None} == {
        "power_w",
        "used_bytes",
        "capacity_bytes",
    }
    assert set(figures.reasons.values()) == {"first look"}


def test_power_is_the_mean_by_the_energy_that_was_counted() -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER)
    found = meters(gpu)
    assert found.read().values["power_w"] == 650.0
    gpu.millijoules += 700_000
    assert found.read().values["power_w"] == 700.0


def test_without_gpm_activity_is_nvmls_and_tensor_cores_are_not_known() -> None:
    gpu = FakeGpu(uuid="GPU-a", **AMPERE)
    found = meters(gpu)
    found.read()
    gpu.counts = {138: 40, 139: 60}
    figures = found.read()
    assert (figures.values["sm_pct"], found.source) == (88, "utilisation")
    assert (figures.values["pcie_tx_bytes_per_s"], figures.values["pcie_rx_bytes_per_s"]) == (2000 << 10, 3000 << 10)
    assert figures.reasons == {"tensor_pct": "not supported", "dram_pct": "not supported"}


def test_nvlink_without_gpm_is_the_rate_of_its_counts_in_kib() -> None:
    gpu = FakeGpu(uuid="GPU-a", **AMPERE)
    found = GpuMeters(open_nvml(FakeNvml(gpu)), "GPU-a", clock=lambda: now)
    now = 5.0
    found.read()
    gpu.counts, now = {138: 40, 139: 60}, 7.0
    figures = found.read().values
    assert (figures["nvlink_tx_bytes_per_s"], figures["nvlink_rx_bytes_per_s"]) == (20 << 10, 30 << 10)


def test_pcie_without_gpm_is_the_rate_of_its_counts_where_they_are_wide_enough() -> None:
    gpu = FakeGpu(uuid="GPU-a", **AMPERE | {"counts": {197: 0, 198: 0}, "narrow": frozenset({198})})
    found = GpuMeters(open_nvml(FakeNvml(gpu)), "GPU-a", clock=lambda: now)
    now = 5.0
    found.read()
    gpu.counts, now = {197: 1000, 198: 1000}, 7.0
    figures = found.read().values
    assert (figures["pcie_tx_bytes_per_s"], figures["pcie_rx_bytes_per_s"]) == (500.0, 3000 << 10)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("nvmlDeviceGetMemoryInfo", {"used_bytes", "capacity_bytes"}),
        ("nvmlDeviceGetUtilizationRates", {"sm_pct"}),
        ("nvmlDeviceGetPowerUsage", set()),
    ],
)
def test_a_meter_that_may_not_be_read_takes_no_other_with_it(function: str, names: set[str]) -> None:
    figures = twice(FakeGpu(uuid="GPU-a", **AMPERE, refuses={function: 4}))
    refused = {name for name, reason in figures.reasons.items() if reason == "permission"}
    assert refused == names
    assert [figures.values[name] for name in refused] == [None] * len(refused)


def test_gpm_that_may_not_be_asked_leaves_activity_to_nvml() -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER | {"busy": 70}, refuses={"nvmlGpmQueryDeviceSupport": 4})
    figures = twice(gpu)
    assert figures.values["sm_pct"] == 70
    assert figures.reasons["tensor_pct"] == "permission"


def test_one_figure_that_gpm_does_not_tell_is_got_another_way() -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER | {"counts": {138: 0, 139: 0}}, gpm_refuses={5: 3, 60: 3, 61: 3})
    found = meters(gpu)
    found.read(), found.read()
    gpu.counts = {138: 5, 139: 5}
    figures = found.read()
    assert figures.reasons == {"tensor_pct": "not supported"}
    assert (figures.values["nvlink_rx_bytes_per_s"] or 0) > 0


def test_a_figure_that_is_no_number_is_missing() -> None:
    figures = twice(FakeGpu(uuid="GPU-a", **HOPPER | {"gpm": GPM | {10: float("nan")}}))
    assert (figures.values["dram_pct"], figures.reasons) == (None, {"dram_pct": "no data"})


@pytest.mark.parametrize(("code", "reason"), [(15, "GPU lost"), (4, "permission"), (999, "refused nvmlgpmsampleget")])
def test_samples_that_cannot_be_taken_say_why(code: int, reason: str) -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER, refuses={"nvmlGpmSampleGet": code})
    figures = twice(gpu)
    assert {figures.reasons[name] for name in ("tensor_pct", "dram_pct")} == {reason}


def test_a_gpu_that_is_lost_in_the_middle_has_no_figure_and_comes_back() -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER)
    found = meters(gpu)
    found.read()
    gpu.lost = "GPU is lost"
    lost = found.read()
    assert set(lost.values.values()) == {None}
    assert lost.reasons == dict.fromkeys(GPU_METERS, "GPU lost")
    gpu.lost = ""
    found.read()
    assert found.read().reasons == {}


def test_a_gpu_that_is_lost_from_the_beginning_is_looked_for_again() -> None:
    gpu = FakeGpu(uuid="GPU-a", **HOPPER, lost="GPU is lost")
    found = meters(gpu)
    assert found.read().reasons == dict.fromkeys(GPU_METERS, "GPU lost")
    gpu.lost = ""
    found.read()
    assert found.read().reasons == {}


def test_a_mig_instance_has_its_own_memory_and_activity_and_no_power() -> None:
    card = slices("m", "1g.18gb", "2g.35gb")
    card.gpm = card.instances[1].gpm = GPM
    card.instances[1].used = 3 * GIB
    for refused in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
        card.instances[1].refuses[refused] = 3
    found = GpuMeters(open_nvml(FakeNvml(card)), "MIG-m-1")
    found.read()
    figures = found.read()
    assert (figures.values["used_bytes"], figures.values["capacity_bytes"]) == (3 * GIB, 35 * GIB)
    assert (figures.values["sm_pct"], figures.reasons) == (93.5, {"power_w": "not supported"})


def test_older_nvml_counts_the_drivers_share_as_used() -> None:
    class Older(FakeNvml):
        nvmlMemory_v2 = None  # type: ignore[assignment]

    found = GpuMeters(open_nvml(Older(FakeGpu(uuid="GPU-a", **HOPPER))), "GPU-a")
    assert found.read().values["used_bytes"] == 60 * GIB + (614 << 20)


def test_an_nvml_without_gpm_is_older_than_hopper() -> None:
    figures = twice(FakeGpu(uuid="GPU-a", **HOPPER | {"busy": 5}), lacks=("nvmlGpmQueryDeviceSupport",))
    assert (figures.values["sm_pct"], figures.reasons["tensor_pct"]) == (5, "not supported")


def test_links_tell_what_they_can_carry() -> None:
    peaks = meters(FakeGpu(uuid="GPU-a", counts={90: 26_562})).peaks()
    assert peaks.values == {"nvlink_bytes_per_s": 18 * 26_562e6, "pcie_bytes_per_s": 16 * 3.938e9}


def test_a_gpu_without_nvlink_has_no_peak_of_it() -> None:
    peaks = meters(FakeGpu(uuid="GPU-a", links=0)).peaks()
    assert peaks.reasons == {"nvlink_bytes_per_s": "no NVLink"}


def test_closing_gives_the_samples_back_once() -> None:
    found = meters(FakeGpu(uuid="GPU-a", **HOPPER))
    found.read()
    found.close()
    found.close()
