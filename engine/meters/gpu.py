"""The meters of one GPU, found by its UUID: activity, memory, links and power, each on its own.

Knows which way each figure is got on which GPUs: GPM on Hopper and later, NVML's counters and rates of utilisation
elsewhere. Does not know the host's network, nor peaks in the table of GPUs (peaks).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from engine.meters.figures import (
    NOT_SUPPORTED,
    Figure,
    Figures,
    Meter,
    Missing,
    Rate,
    first_of,
    none_of,
    read_each,
)
from engine.meters.gpm import Gpm
from engine.nvml import Device, NoAnswer, Nvml, device_of, number, nvlinks, reason_of_code, second_form, text

GPU_METERS = (
    *("sm_pct", "tensor_pct", "dram_pct", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"),
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "power_w", "used_bytes", "capacity_bytes"),
)
"""What GpuMeters reads. Of a MIG instance memory and activity are its own; what NVML tells only of a whole GPU is None.

`sm_pct` is the share of SMs and time that were busy; without GPM the share of time in which any kernel ran.
"""
Source: TypeAlias = Literal["gpm", "utilisation"]

_KIB = 1 << 10
# nvml.h: fields of nvmlDeviceGetFieldValues, and the scope that means all links together.
_NVLINK_TX, _NVLINK_RX, _ALL_LINKS = 138, 139, 0xFFFF_FFFF
_NVLINK_MBYTE_PER_S, _PCIE_TX, _PCIE_RX = 90, 197, 198
_PCIE_COUNTERS = {"tx": 0, "rx": 1}
# nvmlValue_t's members by nvmlValueType_t. 32 bits of bytes are full in a fraction of a second: no rate can be taken.
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
_WIDE = frozenset({2, 3, 4})
# PCI Express base specification: GT/s of a lane, times the share that is data (8b/10b, 128b/130b; 1 in generation 6).
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 8.0e9}


class GpuMeters:
    """Reads one GPU again and again; rates are means between two reads. A GPU that is not found is looked for again.

    `source` is where the last `sm_pct` came from; None where it is not known.
    """

    def __init__(self, nvml: Nvml, uuid: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._uuid, self._clock = nvml, uuid, clock
        self._device: Device | None = None
        self._gpm: Gpm | None = None
        self._no_gpm = NOT_SUPPORTED
        self._rates: dict[str, Rate] = {}
        self.source: Source | None = None

    def read(self) -> Figures:
        """GPU_METERS."""
        try:
            figures = self._read(self._found())
        except NoAnswer as trouble:
            figures = none_of(GPU_METERS, trouble.reason)
        known = figures.values["sm_pct"] is not None
        self.source = ("utilisation" if self._gpm is None else "gpm") if known else None
        return figures

    def peaks(self) -> Figures:
        """What its links can carry one way: `nvlink_bytes_per_s` of those that are up, and `pcie_bytes_per_s`."""
        try:
            device = self._found()
        except NoAnswer as trouble:
            return none_of(("nvlink_bytes_per_s", "pcie_bytes_per_s"), trouble.reason)
        return read_each(
            {
                "nvlink_bytes_per_s": partial(self._nvlink_peak, device),
                "pcie_bytes_per_s": partial(self._pcie_peak, device),
            }
        )

    def name(self) -> str | None:
        """What NVML calls it; None where it does not say."""
        try:
            told = self._nvml.told("nvmlDeviceGetName", self._found().handle)
        except NoAnswer:
            return None
        return None if told is None else text(told)

    def close(self) -> None:
        """Gives back what NVML holds for it."""
        if self._gpm is not None:
            self._gpm.close()
        self._device = self._gpm = None

    def _found(self) -> Device:
        if self._device is None:
            device = device_of(self._nvml, self._uuid)
            try:
                self._gpm = Gpm(self._nvml, device)
            except NoAnswer as trouble:
                self._no_gpm = trouble.reason
            self._device = device
        return self._device

    def _read(self, device: Device) -> Figures:
        if self._gpm is not None:
            self._gpm.sample()
        meters: dict[str, Meter] = {
            "sm_pct": self._by_gpm("sm_pct", partial(self._utilisation, device)),
            "tensor_pct": self._by_gpm("tensor_pct"),
            "dram_pct": self._by_gpm("dram_pct"),
            "power_w": self._power(device),
            "used_bytes": partial(self._memory, device, "used"),
            "capacity_bytes": partial(self._memory, device, "total"),
        }
        for way, nvlink, pcie in (("rx", _NVLINK_RX, _PCIE_RX), ("tx", _NVLINK_TX, _PCIE_TX)):
            counted = partial(self._counted, device, nvlink, scope=_ALL_LINKS, unit=_KIB)
            meters[f"nvlink_{way}_bytes_per_s"] = self._by_gpm(f"nvlink_{way}_bytes_per_s", counted)
            meters[f"pcie_{way}_bytes_per_s"] = self._by_gpm(
                f"pcie_{way}_bytes_per_s",
                partial(self._counted, device, pcie),
                partial(self._pcie_now, device, _PCIE_COUNTERS[way]),
            )
        return read_each({name: meters[name] for name in GPU_METERS})

    def _by_gpm(self, name: str, *other_ways: Meter) -> Meter:
        if self._gpm is not None:
            return first_of(partial(self._gpm.figure, name), *other_ways)
        return first_of(self._without_gpm, *other_ways)

    def _without_gpm(self) -> Figure:
        raise Missing(self._no_gpm)

    def _utilisation(self, device: Device) -> Figure:
        return number(self._nvml.ask("nvmlDeviceGetUtilizationRates", device.handle).gpu)

    def _power(self, device: Device) -> Meter:
        """Watts: the mean by the energy that was counted, or what NVML's own mean of the last moments says."""

        def by_energy() -> Figure:
            joules = number(self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", device.handle)) / 1000
            return self._rate("energy").per_s(joules, self._clock())

        def now() -> Figure:
            return number(self._nvml.ask("nvmlDeviceGetPowerUsage", device.handle)) / 1000

        def read() -> Figure:
            try:
                return by_energy()
            except (Missing, NoAnswer):
                return now()

        return read

    def _memory(self, device: Device, part: str) -> Figure:
        """Bytes of the card that processes hold, or all; the driver's own share counts as used in older NVML only."""
        version = second_form(self._nvml)
        told = None if version is None else self._nvml.told("nvmlDeviceGetMemoryInfo", device.handle, version)
        if told is None:
            told = self._nvml.ask("nvmlDeviceGetMemoryInfo", device.handle)
        return number(getattr(told, part))

    def _counted(self, device: Device, field: int, *, scope: int = 0, unit: int = 1) -> Figure:
        """The rate of a count that NVML keeps since the driver was loaded."""
        value, kind = self._field(device, field, scope)
        if kind not in _WIDE:
            raise Missing(NOT_SUPPORTED)
        return self._rate(f"field {field}").per_s(value * unit, self._clock())

    def _field(self, device: Device, field: int, scope: int) -> tuple[Figure, int]:
        """A field's value and the kind of number that it is."""
        (told,) = self._nvml.ask("nvmlDeviceGetFieldValues", device.handle, [(field, scope)])
        code, kind = number(told.nvmlReturn), number(told.valueType)
        if code or kind not in _MEMBERS:
            raise Missing(reason_of_code(code) if code else NOT_SUPPORTED)
        value: Any = getattr(told.value, _MEMBERS[kind])
        return value, kind

    def _pcie_now(self, device: Device, counter: int) -> Figure:
        """nvmlDeviceGetPcieThroughput: KB/s over 20 ms, which it waits for."""
        return number(self._nvml.ask("nvmlDeviceGetPcieThroughput", device.handle, counter)) * _KIB

    def _rate(self, name: str) -> Rate:
        return self._rates.setdefault(name, Rate())

    def _nvlink_peak(self, device: Device) -> Figure:
        links = nvlinks(self._nvml, device.handle)
        if not links:
            raise Missing("no NVLink" if links is None else "no NVLink is up")
        each_mbyte_per_s, _ = self._field(device, _NVLINK_MBYTE_PER_S, 0)
        return links * each_mbyte_per_s * 1e6

    def _pcie_peak(self, device: Device) -> Figure:
        """The link as it can be: an idle GPU lets its generation down."""
        generation = number(self._nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", device.card))
        lanes = number(self._nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", device.card))
        if generation not in _LANE_BYTES_PER_S or lanes <= 0:
            raise Missing("no data")
        return _LANE_BYTES_PER_S[generation] * lanes
