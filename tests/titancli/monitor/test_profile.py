"""Profiles of steps."""

from __future__ import annotations

from typing import Any

import pytest

from titancli.monitor.profile import Profile

PARTS: dict[str, Any] = {
    "data_s": 0.05,
    "compute_s": 0.3,
    "host_s": 0.02,
    "bubble_s": 0.03,
    "other_s": 0.0,
    "exposed_comm_s": {"tp": 0.06, "world": 0.04},
    "profiled_s": 0.49,
}


def told(step_s: Any = 0.5, **parts: Any) -> Profile | None:
    return Profile.read({"time": 9.0, "step": 7, "step_s": step_s, "breakdown": PARTS | parts})


def test_own_time_is_what_the_rank_does_not_wait_for_others() -> None:
    profile = told()
    assert profile is not None
    assert profile.own_s == pytest.approx(0.5 - 0.1 - 0.03)


def test_idle_time_is_split_by_cause_and_by_axis() -> None:
    profile = told()
    assert profile is not None
    assert profile.idle_pct == pytest.approx(40.0)
    assert profile.idle == pytest.approx({"data": 10.0, "host": 4.0, "bubble": 6.0, "other": 0.0, "exposed_comm": 20.0})
    assert profile.exposed_pct == pytest.approx({"tp": 12.0, "world": 8.0})


def test_cause_that_is_not_known_is_not_there() -> None:
    profile = told(bubble_s=None, host_s="much")
    assert profile is not None
    assert list(profile.idle) == ["data", "other", "exposed_comm"]


@pytest.mark.parametrize(
    ("step_s", "parts"),
    [(0.5, {"compute_s": None}), (0.0, {}), (-1.0, {}), (None, {}), (0.5, {"compute_s": 1e300}), ("x", {})],
)
def test_step_without_a_profile_or_without_sense_has_none(step_s: Any, parts: dict[str, Any]) -> None:
    assert told(step_s, **parts) is None


@pytest.mark.parametrize("waits", [None, 3, {"tp": "x"}])
def test_communication_that_is_not_told_by_axis_is_none(waits: Any) -> None:
    profile = told(exposed_comm_s=waits)
    assert profile is not None
    assert profile.exposed_comm_s == {}
