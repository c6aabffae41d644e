"""The meters of a rank that trains: its events, whatever the driver does."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeError, FakeGpu, FakeNvml

from engine.events import EVERY_EVENT, missing_fields
from engine.meters import figures, rank
from engine.meters.network import NetworkMeters
from engine.meters.peaks import Asked
from engine.meters.rank import GpuSource, RankMeters

GPM = {2: 93.5, 5: 61.0, 10: 40.25, 20: 3.0, 21: 5.0, 60: 7.0, 61: 11.0}


class Kept:
    """Events, and a way to wait for the next one."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._came = threading.Semaphore(0)

    def write(self, kind: str, **fields: Any) -> None:
        assert kind == "gpu"
        self.events.append(fields)
        self._came.release()

    def next(self) -> dict[str, Any]:
        assert self._came.acquire(timeout=10), "no event"
        return self.events[-1]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks may follow each other at once."""
    monkeypatch.setattr(figures, "SHORTEST_WINDOW_S", 0.0)


def hopper() -> FakeGpu:
    return FakeGpu(uuid="GPU-a", gpm=dict(GPM), counts={90: 26_562}, used=1 << 30)


def meters(nvml: FakeNvml, kept: Kept, nowhere: Path) -> RankMeters:
    source = partial(GpuSource, "GPU-a", asked=Asked(), nvml=nvml, network=NetworkMeters(nowhere))
    return RankMeters("GPU-a", kept, source=source)


def test_an_event_has_all_fields_and_a_reason_for_each_that_is_null(tmp_path: Path) -> None:
    kept = Kept()
    with meters(FakeNvml(hopper()), kept, tmp_path) as ours:
        ours.report()
        event = kept.next()
    assert missing_fields({**dict.fromkeys(EVERY_EVENT), "kind": "gpu", **event}) == ()
    assert (event["uuid"], event["sm_pct"], event["source"], event["used_bytes"]) == ("GPU-a", 93.5, "gpm", 1 << 30)
    assert {name for name, value in event.items() if value is None} == set(event["reasons"])
    assert event["peaks"] == {
        "nvlink_bytes_per_s": 450e9,
        "pcie_bytes_per_s": 16 * 3.938e9,
        "network_bytes_per_s": None,
    }


def test_nvml_is_opened_once_and_closed_in_the_end(tmp_path: Path) -> None:
    kept, nvml = Kept(), FakeNvml(hopper())
    with meters(nvml, kept, tmp_path) as ours:
        for _ in range(2):
            ours.report()
            kept.next()
        assert nvml.open == 1
    assert nvml.open == 0


def test_without_nvml_all_of_the_gpu_is_null_and_training_goes_on(tmp_path: Path) -> None:
    kept = Kept()
    with meters(FakeNvml(init=FakeError(12, "not found")), kept, tmp_path) as ours:
        ours.report()
        event = kept.next()
    assert (event["sm_pct"], event["reasons"]["sm_pct"]) == (None, "NVML missing")


def test_a_driver_that_hangs_holds_no_report_up_and_each_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(rank, "_END_S", 0.02)
    kept, nvml = Kept(), FakeNvml(hopper())
    ours = meters(nvml, kept, tmp_path)
    ours.report()
    kept.next()
    nvml.answers.clear()
    ours.report()
    assert nvml.hangs.wait(10)
    ours.report()
    event = kept.next()
    ours.close()
    written = len(kept.events)
    nvml.answers.set()
    assert set(event["reasons"].values()) == {"driver does not answer"}
    assert (event["sm_pct"], event["network_rx_bytes_per_s"], len(kept.events)) == (None, None, written)


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    kept = Kept()
    ours = meters(FakeNvml(hopper()), kept, tmp_path)
    ours.close()
    ours.report()
    assert kept.events == []


def test_what_was_reported_is_written_before_the_end(tmp_path: Path) -> None:
    kept = Kept()
    with meters(FakeNvml(hopper()), kept, tmp_path) as ours:
        ours.report()
    assert len(kept.events) == 1


def test_a_fault_of_the_library_is_a_reason_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, nvml = Kept(), FakeNvml(hopper())
    with meters(nvml, kept, tmp_path) as ours:
        ours.report()
        kept.next()
        monkeypatch.setattr(FakeNvml, "nvmlGpmMetricsGet", lambda *_: 1 / 0)
        ours.report()
        event = kept.next()
    assert event["reasons"]["sm_pct"] == "ZeroDivisionError: division by zero"


def test_a_full_disk_ends_no_thread(tmp_path: Path) -> None:
    class Full(Kept):
        def write(self, kind: str, **fields: Any) -> None:
            super().write(kind, **fields)
            raise OSError("no space left on device")

    kept = Full()
    with meters(FakeNvml(hopper()), kept, tmp_path) as ours:
        for _ in range(2):
            ours.report()
            kept.next()
    assert len(kept.events) == 2


def test_reports_that_follow_at_once_share_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SHORTEST_WINDOW_S", 1e9)
    kept = Kept()
    ours = meters(FakeNvml(hopper()), kept, tmp_path)
    ours.report()
    kept.next()
    ours.report()
    ours.close()
    assert len(kept.events) == 1


def test_a_rank_without_a_gpu_has_no_thread_and_writes_nothing() -> None:
    kept, before = Kept(), threading.active_count()
    with RankMeters(None, kept) as ours:
        ours.report()
        assert threading.active_count() == before
    assert kept.events == []
    assert ours.processor.pct() is not None
