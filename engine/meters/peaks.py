"""What links can carry at most, and how much of it rates are.

Knows published peaks (hardware), what `[cluster]` says instead, and what NVML and interfaces say of this machine. Does
not measure. A link's peak is that of one direction, and the busier direction counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.hardware import GPUS

PERCENTS = ("link_pct", "pcie_pct", "network_pct", "dram_pct")
_LINKS = {"link_pct": "nvlink", "pcie_pct": "pcie", "network_pct": "network"}
_NO_PEAK = "peak not known"
# No link carries so many bytes/s, and nothing is so many percent.
_NO_FIGURE = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the config says of the links, in its own units, and the GPUs that share a host's network."""

    nvlink_gbyte_per_s: float | None = None
    pcie_gbyte_per_s: float | None = None
    network_gbit_per_s_per_gpu: float | None = None
    gpus_of_host: int = 1


def peaks_of(
    kind: str | None, *, told: Mapping[str, object] | None = None, asked: Asked | None = None
) -> dict[str, float | None]:
    """Peaks in bytes/s: `nvlink_bytes_per_s`, `pcie_bytes_per_s`, `network_bytes_per_s`; None is not known.

    What the config says goes first. NVLink: the data sheet's (GPUS, of the kind), but no more than NVML says of the
    links that are up, whose rate is that of the wires, error correction included (H200: 18 x 26.6 against 450 GB/s).
    PCIe: generation and lanes as NVML has them (`told`), else the data sheet's. Network: the config's
    `network_gbit_per_s_per_gpu` for all GPUs of the host, else what its ports say.
    """
    asked, gpu = asked or Asked(), GPUS.get(kind or "")
    nvlink, pcie, network = (_number((told or {}).get(f"{link}_bytes_per_s")) for link in _LINKS.values())
    sheet = None if gpu is None else gpu.nvlink_bytes_per_s
    known = [rate for rate in (sheet, nvlink) if rate is not None]
    if asked.nvlink_gbyte_per_s is not None:
        known = [asked.nvlink_gbyte_per_s * 1e9]
    if asked.pcie_gbyte_per_s is not None:
        pcie = asked.pcie_gbyte_per_s * 1e9
    if asked.network_gbit_per_s_per_gpu is not None:
        network = asked.network_gbit_per_s_per_gpu * asked.gpus_of_host * 1e9 / 8
    return {
        "nvlink_bytes_per_s": min(known, default=None),
        "pcie_bytes_per_s": pcie if pcie is not None or gpu is None else gpu.pcie_bytes_per_s,
        "network_bytes_per_s": network,
    }


def percents(figures: Mapping[str, object], peaks: Mapping[str, object]) -> dict[str, float | None]:
    """PERCENTS: of each link the busier direction's rate over its peak, None where either is not known.

    `dram_pct` comes as it is: NVML measures it against the memory's theoretical rate (GPM, DRAM_BW_UTIL).
    """
    found: dict[str, float | None] = {name: _use(figures, peaks, link) for name, link in _LINKS.items()}
    return {**found, "dram_pct": _number(figures.get("dram_pct"))}


def explained(found: Mapping[str, float | None], reasons: Mapping[str, object]) -> dict[str, str]:
    """Why each of PERCENTS that is None is so: the reason of its rates, else that there is no peak to hold them to."""
    why: dict[str, str] = {}
    for name in PERCENTS:
        link = _LINKS.get(name)
        names = (name,) if link is None else (f"{link}_rx_bytes_per_s", f"{link}_tx_bytes_per_s")
        told = next((reason for each in names if isinstance(reason := reasons.get(each), str)), None)
        if found.get(name) is None:
            why[name] = told or _NO_PEAK
    return why


def _use(figures: Mapping[str, object], peaks: Mapping[str, object], link: str) -> float | None:
    rates = (_number(figures.get(f"{link}_{way}_bytes_per_s")) for way in ("rx", "tx"))
    known = [rate for rate in rates if rate is not None]
    peak = _number(peaks.get(f"{link}_bytes_per_s"))
    return 100 * max(known) / peak if known and peak else None


def _number(value: object) -> float | None:
    """A figure, None for what is none: events come from files, and a crash can leave 400 digits in one."""
    is_figure = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _NO_FIGURE
    return float(value) if is_figure and isinstance(value, (int, float)) else None
