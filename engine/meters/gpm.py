"""GPM, NVML's meters of Hopper and later: what a GPU did between two samples of its counters.

Knows which meters are asked for, under which numbers, and in which units they come. Does not know what is asked where a
GPU has no GPM (gpu).
"""

from __future__ import annotations

import math
from typing import Any

from engine.meters.figures import FIRST_LOOK, NOT_SUPPORTED, Missing
from engine.nvml import Device, NoAnswer, Nvml, number, reason_of_code

_MIB = 1 << 20
# nvml.h, nvmlGpmMetricId_t: per cents of the time of all SMs, of the memory's theoretical rate, and MiB/s.
METRICS: dict[str, tuple[int, int]] = {
    "sm_pct": (2, 1),
    "tensor_pct": (5, 1),
    "dram_pct": (10, 1),
    "pcie_tx_bytes_per_s": (20, _MIB),
    "pcie_rx_bytes_per_s": (21, _MIB),
    "nvlink_rx_bytes_per_s": (60, _MIB),
    "nvlink_tx_bytes_per_s": (61, _MIB),
}
"""Number and unit of each meter; per cents are of the whole window, and rates its mean."""


class Gpm:
    """The meters of one GPU, or of one MIG instance of it, as means between the last two samples.

    NoAnswer where the GPU, the driver or who may ask it does not have them.
    """

    def __init__(self, nvml: Nvml, device: Device) -> None:
        support = nvml.ask("nvmlGpmQueryDeviceSupport", device.card)
        if not number(support.isSupportedDevice):
            raise NoAnswer(NOT_SUPPORTED)
        self._nvml, self._device = nvml, device
        self._older, self._newer = (nvml.ask("nvmlGpmSampleAlloc") for _ in range(2))
        self._samples = 0
        self._told: dict[str, float | str] = {}

    def sample(self) -> None:
        """Takes a sample, and what the GPU did since the last one; where none can be taken, every figure says why."""
        self._told = {}
        self._older, self._newer = self._newer, self._older
        try:
            if self._device.instance is None:
                self._nvml.ask("nvmlGpmSampleGet", self._device.handle, self._newer)
            else:
                self._nvml.ask("nvmlGpmMigSampleGet", self._device.card, self._device.instance, self._newer)
            self._samples += 1
            if self._samples > 1:
                self._told = self._compare()
        except NoAnswer as trouble:
            self._samples, self._told = 0, dict.fromkeys(METRICS, trouble.reason)

    def figure(self, name: str) -> float:
        """One of METRICS; Missing where GPM does not tell it, or there is one sample yet."""
        told = self._told.get(name, FIRST_LOOK)
        if isinstance(told, str):
            raise Missing(told)
        return told

    def close(self) -> None:
        """Gives the samples back."""
        for sample in (self._older, self._newer):
            self._nvml.told("nvmlGpmSampleFree", sample)

    def _compare(self) -> dict[str, float | str]:
        """The figure of each meter, or why it has none."""
        asked: Any = self._nvml.module.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.module.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(METRICS)
        asked.sample1, asked.sample2 = self._older, self._newer
        for place, (identity, _) in enumerate(METRICS.values()):
            asked.metrics[place].metricId = identity
        self._nvml.ask("nvmlGpmMetricsGet", asked)
        told: dict[str, float | str] = {}
        for place, (name, (_, unit)) in enumerate(METRICS.items()):
            metric = asked.metrics[place]
            code, value = number(metric.nvmlReturn), float(metric.value)
            if code:
                told[name] = reason_of_code(code)
            else:
                told[name] = value * unit if math.isfinite(value) else "no data"
        return told
