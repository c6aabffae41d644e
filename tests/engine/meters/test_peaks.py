"""Peaks of links, and rates in per cent of them."""

from __future__ import annotations

from engine.meters.peaks import Asked, explained, peaks_of, percents

WIRES = {"nvlink_bytes_per_s": 478e9, "pcie_bytes_per_s": 63e9, "network_bytes_per_s": 12.5e9}


def test_the_data_sheet_is_less_than_what_wires_carry() -> None:
    assert peaks_of("h200", told=WIRES)["nvlink_bytes_per_s"] == 450e9


def test_links_that_are_down_lower_the_peak() -> None:
    assert peaks_of("h200", told={"nvlink_bytes_per_s": 239e9})["nvlink_bytes_per_s"] == 239e9


def test_pcie_is_what_its_lanes_carry_and_else_the_data_sheets() -> None:
    assert peaks_of("a100-80", told={"pcie_bytes_per_s": 15.75e9})["pcie_bytes_per_s"] == 15.75e9
    assert peaks_of("a100-80")["pcie_bytes_per_s"] == 32e9


def test_what_the_config_says_goes_first() -> None:
    asked = Asked(nvlink_gbyte_per_s=600, pcie_gbyte_per_s=20, network_gbit_per_s_per_gpu=100, gpus_of_host=8)
    assert peaks_of("h200", told=WIRES, asked=asked) == {
        "nvlink_bytes_per_s": 600e9,
        "pcie_bytes_per_s": 20e9,
        "network_bytes_per_s": 100e9,
    }


def test_a_network_that_nobody_describes_has_the_speed_of_its_ports() -> None:
    assert peaks_of("h200", told=WIRES)["network_bytes_per_s"] == 12.5e9


def test_a_gpu_that_nobody_knows_has_the_peaks_that_nvml_tells() -> None:
    unknown = dict.fromkeys(("nvlink_bytes_per_s", "pcie_bytes_per_s", "network_bytes_per_s"))
    assert peaks_of("a new one", told=WIRES) == WIRES
    assert peaks_of(None) == unknown


def test_the_busier_direction_counts() -> None:
    figures = {
        "nvlink_rx_bytes_per_s": 90e9,
        "nvlink_tx_bytes_per_s": 45e9,
        "pcie_tx_bytes_per_s": 6.3e9,
        "dram_pct": 31,
    }
    assert percents(figures, peaks_of("h200", told=WIRES)) == {
        "link_pct": 20.0,
        "pcie_pct": 10.0,
        "network_pct": None,
        "dram_pct": 31.0,
    }


def test_what_is_no_figure_is_not_known() -> None:
    rates = {f"{link}_rx_bytes_per_s": 1.0 for link in ("nvlink", "pcie", "network")}
    peaks = {"nvlink_bytes_per_s": 10**400, "pcie_bytes_per_s": float("inf"), "network_bytes_per_s": -1}
    assert set(percents(rates | {"dram_pct": float("nan")}, peaks).values()) == {None}


def test_what_is_not_known_is_explained() -> None:
    figures = {"nvlink_rx_bytes_per_s": None, "pcie_rx_bytes_per_s": 1.0}
    found = percents(figures, {"nvlink_bytes_per_s": 450e9})
    why = explained(found, {"nvlink_rx_bytes_per_s": "not supported", "dram_pct": "permission"})
    assert why == {
        "link_pct": "not supported",
        "pcie_pct": "peak not known",
        "network_pct": "peak not known",
        "dram_pct": "permission",
    }
