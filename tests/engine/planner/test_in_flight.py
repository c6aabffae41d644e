"""Microbatches in flight, counted in the order of operations that torch itself makes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ScheduleName
from engine.planner import in_flight as in_flight_module
from engine.planner.in_flight import Fullness, fullest, in_flight
from engine.planner.order import rank_order
from engine.planner.schedule import stage_indices
from tests.world.torch_schedules import schedule_of_torch

MULTI: tuple[ScheduleName, ...] = (
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
    "LoopedBFS",
)
FREES = ("FULL_BACKWARD", "BACKWARD_WEIGHT")


def order_of(schedule: ScheduleName, *, pp: int, stages_a_rank: int, microbatches: int) -> dict[int, list[Any]]:
    """What torch lets each rank do: each knows the order of all."""
    made = schedule_of_torch(schedule, pp_rank=0, pp=pp, stages_a_rank=stages_a_rank, microbatches=microbatches)
    return dict(made.pipeline_order)


def most_held(actions: list[Any]) -> dict[int, int]:
    """Microbatches of each stage at the first moment at which the rank holds most in all."""
    held: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in filter(None, actions):
        for part in action.sub_actions or [action]:
            kind = part.computation_type.name
            held[part.stage_index] = held.get(part.stage_index, 0) + (kind == "FORWARD") - (kind in FREES)
            if sum(held.values()) > sum(most.values()):
                most = dict(held)
    return most


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", MULTI)
def test_held_microbatches_are_those_of_torch(schedule: ScheduleName, pp: int, rounds: int) -> None:
    microbatches = 2 * pp * rounds if schedule == "DualPipeV" else pp * rounds
    order = order_of(schedule, pp=pp, stages_a_rank=2, microbatches=microbatches)
    for rank in range(pp):
        indices = stage_indices(schedule, pp_rank=rank, pp=pp, stages_a_rank=2)
        found = in_flight(schedule, pp_rank=rank, pp=pp, stages_a_rank=2, microbatches=microbatches)
        assert dict(zip(indices, found, strict=True)) == most_held(order[rank])


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "InterleavedZeroBubble"])
@pytest.mark.parametrize("microbatches", [2, 4, 6, 8, 12])
def test_three_stages_a_rank_take_turns(schedule: ScheduleName, microbatches: int) -> None:
    order = order_of(schedule, pp=4, stages_a_rank=3, microbatches=microbatches)
    for rank in range(4):
        found = in_flight(schedule, pp_rank=rank, pp=4, stages_a_rank=3, microbatches=microbatches)
        assert sum(found) == sum(most_held(order[rank]).values())


@pytest.mark.parametrize(
    ("schedule", "microbatches", "held"),
    [("GPipe", 6, [6, 6, 6, 6]), ("1F1B", 6, [4, 3, 2, 1]), ("1F1B", 2, [2, 2, 2, 1])],
)
def test_1f1b_holds_what_is_on_its_way_back_and_gpipe_all(
    schedule: ScheduleName, microbatches: int, held: list[int]
) -> None:
    found = [
        in_flight(schedule, pp_rank=rank, pp=4, stages_a_rank=1, microbatches=microbatches)[0] for rank in range(4)
    ]
    assert found == held


def full(schedule: ScheduleName, pp_rank: int, **more: int) -> list[Fullness]:
    """The fullest moments of one of four pipeline ranks with two stages each."""
    return list(fullest(schedule, pp_rank=pp_rank, pp=4, stages_a_rank=2, **more))


def test_one_round_has_no_gradients_of_the_first_stage_while_the_second_goes_back() -> None:
    back = [state for state in full("Interleaved1F1B", 0, microbatches=4) if state.kind == "B"]
    assert [state for state in back if state.held == (4, 4)] == [
        Fullness("B", 1, (4, 4), (0, 0), (False, False), (False, False))
    ]
    assert all(state.graded[0] is False for state in back if state.stage == 1)
    assert all(state.summed[1] for state in back if state.stage == 0)


def test_several_rounds_are_as_full_beside_the_gradients_of_both_stages() -> None:
    back = [state for state in full("Interleaved1F1B", 0, microbatches=12) if state.kind == "B"]
    most = max(sum(state.held) for state in back)
    assert any(sum(state.held) == most and all(state.graded) for state in back)


@pytest.mark.parametrize("pp_rank", range(4))
def test_zero_bubble_puts_off_the_weights_of_as_many_microbatches_as_ranks_are_before(pp_rank: int) -> None:
    states = full("InterleavedZeroBubble", pp_rank, microbatches=16)
    assert max(sum(state.put_off) for state in states) == pp_rank + 1


@pytest.mark.parametrize("schedule", [*MULTI])
def test_no_moment_is_covered_by_another(schedule: ScheduleName) -> None:
    states = full(schedule, 1, microbatches=8)
    assert not any(one.covers(other) for one in states for other in states if one is not other)


@pytest.mark.parametrize("schedule", [*MULTI, "1F1B", "GPipe"])
@pytest.mark.parametrize("pp_rank", [0, 1, 3])
def test_moments_of_many_microbatches_are_those_of_the_whole_order(schedule: ScheduleName, pp_rank: int) -> None:
    stages = 1 if schedule in ("1F1B", "GPipe") else 2
    given = {"pp_rank": pp_rank, "pp": 4, "stages_a_rank": stages, "microbatches": 96}
    along = set(in_flight_module._along(rank_order(schedule, **given), stages, 96))
    few = fullest(schedule, **given)
    assert along >= set(few)
    assert all(any(state.covers(other) for state in few) for other in along)


def test_a_step_of_a_trillion_microbatches_takes_no_time() -> None:
    many = {"pp_rank": 1, "pp": 4, "stages_a_rank": 2, "microbatches": 4 * 10**12}
    assert fullest("Interleaved1F1B", **many) == fullest("Interleaved1F1B", **(many | {"microbatches": 64}))
    assert in_flight("LoopedBFS", **many) == [4 * 10**12] * 2
