"""One look at a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from titancli.monitor.fold import fold
from titancli.monitor.follow import State
from titancli.monitor.frame import Frame, frame
from titancli.monitor.rows import planned_memory
from titancli.monitor.run_state import RunState

PLAN: dict[str, Any] = {
    "gpu": "h200",
    "world_size": 4,
    "stages": [
        {"memory": {"capacity_bytes": 100, "peak_bytes": 60}},
        {"memory": {"capacity_bytes": 100, "peak_bytes": None}},
    ],
}
KEYS = ["time", "run", "state", "step", "steps", "loss", "grad_norm", "tokens_per_s_per_gpu", "mfu_pct", "eta_s"]
MEMORY_KEYS = ["used_bytes", "capacity_bytes", "planned_bytes", "peak_bytes", "planned_reserved_bytes"]
RANK_KEYS = ["rank", "host", "gpu", *MEMORY_KEYS, "sm_pct", "link_pct"]
METER_KEYS = ["uuid", "tensor_pct", "dram_pct", "pcie_pct", "network_pct", "power_w", "cpu_pct", "reasons"]
PACE_KEYS = ["stage", "own_s", "behind_pct", "profiled_step", "is_live"]


def look(*events: dict[str, Any], state: State = "running", now: float = 100.0, steps: object = 10) -> Frame:
    seen = fold(RunState(), [{"rank": 0, "time": 100.0, **event} for event in events])
    config = {"training": {"steps": steps}}
    return frame("x", seen, state, failure=seen.first_failure, config=config, plan=PLAN, now=now)


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": 2.0, "step_s": 3.0, **fields}


def test_json_has_the_keys_of_the_contract_and_nulls_where_nothing_is_known() -> None:
    told = look().to_json()
    later = ["starts", "saved_step", "saved_s_ago", "validation_step", "validation_loss", "lr"]
    later += ["time_s", "slowest", "findings"]
    assert list(told) == [*KEYS, "ranks", "alerts", *later]
    assert [told[key] for key in KEYS[3:]] == [None, 10, None, None, None, None, None]
    assert [list(row) for row in told["ranks"]] == [
        [*RANK_KEYS, "idle_pct", "idle", "exposed_comm_by_axis", *METER_KEYS, *PACE_KEYS]
    ] * 4
    assert {row["used_bytes"] for row in told["ranks"]} == {None}
    json.dumps(told, allow_nan=False)


def test_planned_memory_is_that_of_the_pipeline_stage() -> None:
    assert [row["planned_bytes"] for row in look().to_json()["ranks"]] == [60, 60, None, None]
    assert planned_memory(PLAN, 4) == planned_memory({}, 0) == planned_memory({"stages": [], "world_size": 2}, 0) == {}


def test_time_left_is_the_steps_left_at_the_median_pace() -> None:
    assert look(step(1, step_s=60.0), step(2), step(3, step_s=5.0), step(4)).eta_s == 6 * 3.0


@pytest.mark.parametrize("steps", [None, "many"])
def test_time_left_is_unknown_where_the_number_of_steps_is(steps: object) -> None:
    assert look(step(1), step(2), steps=steps).eta_s is None


def test_run_that_ended_has_no_time_left() -> None:
    assert look(step(1), step(2), state="failed").eta_s is None


def test_link_use_is_a_share_of_the_published_peak() -> None:
    shown = look({"kind": "gpu", "sm_pct": 80, "nvlink_rx_bytes_per_s": 45e9, "nvlink_tx_bytes_per_s": 90e9})
    assert shown.ranks[0]["link_pct"] == pytest.approx(20.0)
    assert shown.ranks[1]["link_pct"] is None


def test_alerts_are_the_findings_as_lines() -> None:
    shown = look({"kind": "memory", "reserved_bytes": 96})
    assert [alert.partition(": ")[0] for alert in shown.alerts] == [each["rule"] for each in shown.findings]
    assert [*shown.findings[0]] == ["rule", "severity", "key", "message", "fix"]
    assert shown.alerts[0] == "W105: not heard of yet: rank 1-3; fix: titan logs x --rank 1 shows how far it has come"


def saved(state: str, number: int, time: float = 40.0) -> dict[str, Any]:
    return {"kind": "checkpoint", "time": time, "step": number, "state": state}


def test_newest_checkpoint_is_shown_with_its_age() -> None:
    shown = look(saved("committed", 4), step(5), saved("begun", 6), now=100.0)
    assert (shown.to_json()["saved_step"], shown.to_json()["saved_s_ago"]) == (4, 60.0)


@pytest.mark.parametrize(
    "plan",
    [
        {"time": {"step_s": 0.0}},
        {"time": 3, "mesh": "x", "world_size": "many", "gpu": 7, "stages": "none"},
        {"time": {"step_s": 1.0, "per_axis": {"tp": "x"}, "compute_s": [1]}, "mesh": {"pp": -1}, "world_size": 2},
        {
            "stages": [{"memory": {"capacity_bytes": "x", "peak_bytes": {}}}, 3],
            "world_size": 2,
            "local_batch_size": "x",
        },
        {"world_size": 10**30, "gpu": "cpu", "memory": 5, "time": {"step_s": 1e300}},
    ],
)
def test_plan_without_sense_breaks_nothing(plan: dict[str, Any]) -> None:
    breakdown = {"compute_s": 1.0, "data_s": 1.0, "exposed_comm_s": {"tp": 1.0}}
    memory = {"kind": "memory", "time": 1.0, "peak_active_bytes": 5, "reserved_bytes": 96, "alloc_retries": 1}
    events = [memory, *(step(number, breakdown=breakdown) for number in range(2, 9))]
    seen = fold(RunState(), [{"rank": rank, "time": 100.0, **event} for rank in (0, 1) for event in events])
    for config in ({}, {"training": 3}, {"model": {"flavor": "8B"}, "parallelism": {"tensor_parallel_degree": 0}}):
        shown = frame("x", seen, "running", failure=None, config=config, plan=plan, now=101.0)
        json.dumps(shown.to_json(), allow_nan=False)


def recorded_json() -> dict[str, Any]:
    """One look at a small run of two pipeline stages, with meters, profiles and a slow rank; whole figures only."""
    plan = {
        **PLAN,
        "mesh": {"pp": 2, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 2},
        "time": {
            "step_s": 8.0,
            "compute_s": 6.0,
            "exposed_comm_s": 1.0,
            "bubble_s": 1.0,
            "per_axis": {"pp": 0, "tp": 1},
        },
    }
    events: list[dict[str, Any]] = [{"kind": "phase", "name": "build", "state": "begin", "time": 1.0}]
    for rank in range(4):
        slow_s = 2.0 if rank == 3 else 0.0
        gpu = {"name": "NVIDIA H200", "uuid": f"GPU-{rank}"}
        events += [
            {"kind": "run_started", "rank": rank, "time": 2.0, "host": "a", "world_size": 4, "pid": 5, "gpu": gpu},
            {"kind": "memory", "rank": rank, "reserved_bytes": 64, "peak_active_bytes": 48, "cpu_pct": 100},
            {
                "kind": "gpu",
                "rank": rank,
                "uuid": f"GPU-{rank}",
                "sm_pct": 75,
                "tensor_pct": 50,
                "dram_pct": None,
                "nvlink_rx_bytes_per_s": 45e9,
                "pcie_rx_bytes_per_s": 16e9,
                "power_w": 600,
                "reasons": {"dram_pct": "not supported"},
                "peaks": {"nvlink_bytes_per_s": 450e9},
            },
            {
                **step(20, rank=rank, step_s=8.0, grad_norm=1.0, lr=0.5, tokens_per_s_per_gpu=1000),
                "breakdown": {
                    "compute_s": 4.0 + slow_s,
                    "data_s": 0.0,
                    "host_s": 0.5,
                    "other_s": 0.5,
                    "bubble_s": 1.0,
                    "exposed_comm_s": {"pp": 0.0, "tp": 2.0 - slow_s},
                    "profiled_s": 8.0,
                },
            },
        ]
    seen = fold(RunState(), [{"rank": 0, "time": 100.0, **event} for event in events])
    shown = frame("x", seen, "running", failure=None, config={"training": {"steps": 100}}, plan=plan, now=101.0)
    told: dict[str, Any] = json.loads(json.dumps(shown.to_json()))
    return told


def test_json_of_a_recorded_run_is_what_it_was() -> None:
    golden = Path(__file__).with_name("frame.json")
    told = json.dumps(recorded_json(), indent=1) + "\n"
    assert told == golden.read_text("utf-8"), f"look at what is different, and write {golden.name} anew"
