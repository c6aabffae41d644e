"""What profiles come to: parts beside the plan, ranks beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from engine.planner.mesh import Mesh
from tests.titancli.monitor.planted import everywhere, on, on_stage
from tests.titancli.monitor.recorded import BEGAN, Recorded, recorded, stage_of
from titancli.monitor.diagnosis import AXES, Diagnosis, Layout, diagnose, planned_seconds
from titancli.monitor.fold import fold
from titancli.monitor.profile import Profile
from titancli.monitor.run_state import Rank, RunState


def of(run: Recorded) -> Diagnosis:
    seen = fold(RunState(), run.every())
    return diagnose(seen, seen.plan or {})


def mesh(**degrees: int) -> dict[str, Any]:
    return {"mesh": dict.fromkeys(AXES, 1) | degrees}


def profile(own_s: float, step: int = 10, waits: Mapping[str, float] | None = None, step_s: float = 10.0) -> Profile:
    open_s = {"tp": step_s - own_s} if waits is None else waits
    return Profile(step=step, time=5.0, step_s=step_s, compute_s=own_s, exposed_comm_s=open_s)


def ranks_of(*own: tuple[float, ...], plan: Mapping[str, Any] | None = None) -> Diagnosis:
    """Ranks with the own times of their profiles."""
    ranks = {
        number: Rank(rank=number, profiles=tuple(profile(each, 10 * place) for place, each in enumerate(told)))
        for number, told in enumerate(own)
    }
    return diagnose(RunState(ranks=ranks), plan or {})


def test_tensor_ranks_are_neighbours_and_stages_lie_outermost() -> None:
    layout = Layout.of(mesh(pp=2, dp_shard=2, tp=2))
    assert [layout.stage(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    groups = {axis: [layout.group(rank, axis) for rank in range(8)] for axis in ("tp", "dp_shard", "pp")}
    assert [groups["tp"][0] == each for each in groups["tp"]] == [True, True, *[False] * 6]
    assert [groups["dp_shard"][0] == each for each in groups["dp_shard"]] == [True, False, True, *[False] * 5]
    assert [groups["pp"][0] == each for each in groups["pp"]] == [True, *[False] * 3, True, *[False] * 3]


def test_weights_are_sharded_over_context_ranks_too() -> None:
    layout = Layout.of(mesh(dp_shard=2, cp=2))
    assert len({layout.group(rank, "dp_shard") for rank in range(4)}) == 1
    assert len({layout.group(rank, "cp") for rank in range(4)}) == 2


@pytest.mark.parametrize("plan", [{}, {"mesh": 3}, {"mesh": {"pp": 2}}, mesh(tp=0), mesh(pp="x")])  # type: ignore[arg-type]
def test_plan_without_a_mesh_is_one_stage(plan: dict[str, Any]) -> None:
    assert Layout.of(plan) == Layout()


@pytest.mark.parametrize("preset", ["fsdp-8b", "3d-405b"])
def test_parts_of_a_step_sum_to_it(preset: str) -> None:
    measured = of(recorded(preset, steps=50)).measured
    assert measured is not None
    parts = [measured[name] for name in ("compute", "data", "host", "bubble", "other")]
    assert sum(parts) + sum(measured["exposed_comm"].values()) == pytest.approx(measured["step"])


def test_planned_seconds_are_those_of_the_plan_and_what_it_cannot_know_is_none() -> None:
    run = recorded("3d-405b", steps=1)
    planned = planned_seconds({"time": {**vars_of(run), "per_axis": {"tp": 1.5, "pp": None}}})
    assert planned == {
        "step": run.plan.time.step_s,
        "compute": run.plan.time.compute_s,
        "bubble": run.plan.time.bubble_s,
        **dict.fromkeys(("data", "host", "other")),
        "exposed_comm": {"tp": 1.5},
    }
    assert planned_seconds({}) is planned_seconds({"time": {"step_s": None}}) is None


def vars_of(run: Recorded) -> dict[str, Any]:
    return {name: getattr(run.plan.time, name) for name in ("step_s", "compute_s", "bubble_s", "per_axis")}


def test_without_profiles_nothing_is_known() -> None:
    found = of(recorded("fsdp-8b", breakdown_freq=0))
    assert (found.measured, found.slowest, found.stages, found.open_pct("dp_shard")) == (None, None, (), None)
    assert (found.own_s, found.behind_pct) == ({}, {})


def test_slow_rank_is_behind_the_median_of_the_others() -> None:
    slowest = of(recorded("fsdp-8b", change=on([5], 0.2, "compute_s"))).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.of, slowest.profiles) == (5, 8, 2)
    assert slowest.behind_pct == pytest.approx(20, abs=1.0)


def test_of_two_ranks_each_is_held_to_the_other() -> None:
    assert ranks_of((4.0,), (5.0,)).behind_pct == pytest.approx({0: -20.0, 1: 25.0})


def test_rank_is_as_slow_as_the_better_of_its_newest_two_profiles() -> None:
    assert ranks_of((9.0, 4.0, 8.0), (4.0, 4.0, 4.0)).own_s == {0: 4.0, 1: 4.0}


def test_spread_is_that_of_the_ranks_around_their_middle() -> None:
    slowest = ranks_of((4.0,), (4.4,), (4.8,), (5.2,), (6.0,)).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.spread_pct) == (4, pytest.approx(100 * 0.4 / 4.6))


def test_rank_is_compared_within_its_stage_only() -> None:
    found = ranks_of((4.0,), (4.0,), (8.0,), (8.4,), plan=mesh(pp=2, tp=2))
    assert found.behind_pct == pytest.approx({0: 0.0, 1: 0.0, 2: 100 * (8.0 / 8.4 - 1), 3: 5.0})
    assert [stage.own_s for stage in found.stages] == [4.0, pytest.approx(8.2)]


def test_stage_alone_has_nobody_to_be_compared_with() -> None:
    assert ranks_of((4.0,), (8.0,), plan=mesh(pp=2)).slowest is None


def test_stage_that_computes_for_longer_has_more_time_of_its_own() -> None:
    run = recorded("3d-405b", steps=50, change=on_stage(lambda rank: rank // 64, 5, 0.2))
    own = [stage.own_s for stage in of(run).stages]
    assert own.index(max(own)) == stage_of(run.plan, 64 * 5) == 5


def test_communication_in_the_open_is_that_of_whoever_waits_least() -> None:
    late = of(recorded("fsdp-8b", change=on([3], 0.5, "compute_s")))
    slow = of(recorded("fsdp-8b", change=everywhere(0.5, "exposed_comm_s", "dp_shard")))
    assert (late.open_pct("dp_shard") or 0.0) < 4.0
    assert (slow.open_pct("dp_shard") or 0.0) > 33.0
    assert late.open_pct("tp") is None


def test_shares_of_the_plan_are_percent_of_its_step() -> None:
    found = diagnose(RunState(), {"time": {"step_s": 2.0, "bubble_s": 0.5, "per_axis": {"pp": 0.1}}})
    assert found.planned_pct("bubble", "exposed_comm.pp") == pytest.approx(30.0)
    assert found.planned_pct("exposed_comm.tp") == 0.0
    assert found.planned_pct("data") is None
    assert diagnose(RunState(), {}).planned_pct("bubble") is None


def test_profiles_of_an_attempt_before_do_not_count() -> None:
    run = recorded("fsdp-8b")
    seen = fold(RunState(), [*run.every(), {"kind": "warning", "rank": 0, "time": run.ended + 5, "restarts": True}])
    assert diagnose(seen, seen.plan or {}).measured is None
    assert run.ended > BEGAN


def test_512_ranks_are_diagnosed_in_one_pass_over_them() -> None:
    found = of(recorded("3d-405b", steps=50))
    assert len(found.behind_pct) == 512
    assert max(found.behind_pct.values()) < 1.0


def test_axes_lie_in_the_order_in_which_the_planner_lays_ranks_out() -> None:
    assert tuple(field.name for field in fields(Mesh)) == AXES
