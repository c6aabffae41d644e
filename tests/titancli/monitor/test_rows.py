"""Rows of ranks: what they have, were planned to have, and do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.titancli.monitor.recorded import Recorded, recorded, uuid_of
from titancli.monitor.diagnosis import diagnose
from titancli.monitor.fold import fold
from titancli.monitor.rows import rows_of
from titancli.monitor.run_state import RunState


def rows(run: Recorded, live: dict[int, dict[str, Any]] | None = None) -> tuple[dict[str, Any], ...]:
    seen = fold(RunState(), run.every())
    plan = seen.plan or {}
    return rows_of(seen, plan, diagnose(seen, plan), live or {})


def test_meters_of_events_are_per_cent_of_the_peaks_that_they_bring() -> None:
    row = rows(recorded("fsdp-8b"))[3]
    assert (row["uuid"], row["cpu_pct"], row["is_live"]) == (uuid_of(3), 104.0, False)
    assert row["link_pct"] == pytest.approx(100 * 9.1e10 / 450e9)
    assert row["pcie_pct"] == pytest.approx(100 * 1.2 / 64)
    assert row["network_pct"] == pytest.approx(100 * 2.1 / 50)
    assert row["reasons"] == {}


def test_events_without_peaks_are_held_to_the_published_ones() -> None:
    row = rows(recorded("fsdp-8b", of_gpu=lambda *_: {"peaks": None}))[0]
    assert row["link_pct"] == pytest.approx(100 * 9.1e10 / 450e9)
    assert (row["network_pct"], row["reasons"]) == (None, {"network_pct": "peak not known"})


def test_c45_meter_that_is_missing_is_null_with_its_reason() -> None:
    gone = {"sm_pct": None, "nvlink_rx_bytes_per_s": None, "nvlink_tx_bytes_per_s": None}
    why = {"sm_pct": "permission", "nvlink_rx_bytes_per_s": "not supported"}
    row = rows(recorded("fsdp-8b", of_gpu=lambda *_: gone | {"reasons": why}))[0]
    assert (row["sm_pct"], row["link_pct"]) == (None, None)
    assert row["reasons"] == {"sm_pct": "permission", "link_pct": "not supported"}


def test_what_is_read_here_and_now_goes_before_what_was_written() -> None:
    gone = {"sm_pct": None, "tensor_pct": None, "reasons": {"sm_pct": "permission", "tensor_pct": "permission"}}
    now = {"sm_pct": 33.0, "power_w": None, "reasons": {"power_w": "GPU lost"}, "is_live": True}
    first, second = rows(recorded("fsdp-8b", of_gpu=lambda *_: gone), {0: now})[:2]
    assert (first["sm_pct"], first["power_w"], first["is_live"]) == (33.0, None, True)
    assert first["reasons"] == {"tensor_pct": "permission", "power_w": "GPU lost"}
    assert (second["sm_pct"], second["is_live"]) == (None, False)


def test_row_of_a_pipeline_rank_has_the_memory_of_its_stage() -> None:
    run = recorded("3d-405b", steps=50)
    last = rows(run)[511]
    assert (last["stage"], last["planned_bytes"]) == (7, run.plan.stages[7].memory.peak_bytes)


def test_process_on_a_cpu_has_its_own_figures_and_no_meters() -> None:
    row = rows(recorded("quickstart"))[1]
    assert (row["used_bytes"], row["cpu_pct"], row["uuid"], row["sm_pct"]) == (1 << 29, 100.0, None, None)
    assert row["reasons"] == {}


def test_rank_that_should_have_spoken_has_a_row_of_nulls() -> None:
    row = rows_of(RunState(world_size=2), {}, diagnose(RunState(), {}), {})[1]
    assert {name: value for name, value in row.items() if value is not None} == {
        "rank": 1,
        "reasons": {},
        "stage": 0,
        "is_live": False,
    }


@pytest.mark.parametrize("told", [{"reasons": 3, "peaks": "x", "sm_pct": "much"}, {"nvlink_rx_bytes_per_s": 1e308}])
def test_meters_without_sense_are_unknown(told: dict[str, Any]) -> None:
    row = rows(recorded("fsdp-8b", of_gpu=lambda *_: told | {"nvlink_tx_bytes_per_s": None}))[0]
    assert row["link_pct"] is None or row["sm_pct"] is None
