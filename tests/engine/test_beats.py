"""Who is to blame for a run that stands still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.beats import POINTS, Beat, Heard, judge, lost_head
from engine.first_failure import FirstFailure

LIMIT = "comm.train_timeout_seconds = 100"
FREE = Beat(
    rank=0, host="a", pid=1, count=9, step=5, point="gradients", idle_s=1.0, deadline_s=100.0, limit=LIMIT, waits=False
)
WAITS = replace(FREE, idle_s=101.0, stack=("/torch/distributed/c10d.py:3 in all_reduce: work.wait()",), waits=True)
SLEEPS = replace(FREE, idle_s=101.0, stack=("/x/run.py:1 in main: f()", "/x/data.py:7 in read: time.sleep(9)"))


def verdict(*beats: Beat, silent: dict[int, Beat | None] | None = None) -> FirstFailure | None:
    """What rank 0 says, which hears these beats of ranks 0, 1, ... and has not heard of the silent ones for 60 s."""
    ranks = {rank: Heard(beat=replace(beat, rank=rank), silent_s=0.5) for rank, beat in enumerate(beats)}
    gone = {rank: Heard(beat=beat and replace(beat, rank=rank), silent_s=60.0) for rank, beat in (silent or {}).items()}
    return judge(ranks | gone, patience_s=50.0)


def test_a_run_that_goes_on_has_nobody_to_blame() -> None:
    assert verdict(FREE, FREE) is None


def test_the_rank_that_does_not_wait_is_stuck_where_all_are_in_the_same_place() -> None:
    found = verdict(WAITS, replace(SLEEPS, host="b"), WAITS)
    assert found is not None
    assert (found.rank, found.host, found.type, found.exit_code) == (1, "b", "StuckRank", 1)
    assert found.message == (
        f"rank 1 on host b made no progress for 101 s ({LIMIT}) in step 5, computing gradients, "
        "at /x/data.py:7 in read: time.sleep(9)\nfrom /x/run.py:1 in main: f()"
    )


@pytest.mark.parametrize("waits", [True, False])
def test_the_rank_with_the_least_progress_is_stuck(waits: bool) -> None:
    found = verdict(WAITS, replace(SLEEPS, point="data", waits=waits), WAITS)
    assert found is not None
    assert (found.rank, found.type) == (1, "StuckRank")
    assert "reading data" in found.message


def test_a_rank_of_an_earlier_step_is_behind_one_of_a_later_step() -> None:
    found = verdict(replace(WAITS, step=6, point="data"), replace(WAITS, point="report"))
    assert found is not None
    assert found.rank == 1


def test_a_rank_that_is_further_and_does_not_wait_keeps_those_that_wait() -> None:
    found = verdict(WAITS, replace(SLEEPS, point="update"))
    assert found is not None
    assert found.rank == 1


def test_ranks_that_wait_in_the_same_place_are_all_named() -> None:
    found = verdict(WAITS, WAITS, WAITS)
    assert found is not None
    assert found.rank == 0
    assert found.message.startswith("all 3 ranks made no progress for 101 s")
    assert "stand at the same place: step 5, computing gradients, at /torch/distributed" in found.message


def test_a_rank_that_saves_within_its_own_time_is_waited_for() -> None:
    saves = replace(FREE, point="save", step=4, idle_s=900.0, deadline_s=1800.0)
    assert verdict(WAITS, saves) is None
    late = replace(saves, idle_s=1801.0, limit="comm.save_timeout_seconds = 1800")
    found = verdict(WAITS, late)
    assert found is not None
    assert "rank 1 on host a made no progress for 1801 s (comm.save_timeout_seconds = 1800)" in found.message


def test_silent_ranks_go_before_those_that_wait_for_them() -> None:
    found = verdict(WAITS, WAITS, silent={2: replace(FREE, host="b"), 3: replace(FREE, host="b")})
    assert found is not None
    assert (found.rank, found.host, found.type) == (2, "b", "LostRank")
    assert found.message.startswith(
        "ranks 2, 3 on host b have been silent for at least 60 s: their processes are frozen"
    )
    assert found.message.endswith("rank 2 was last heard in step 5, computing gradients")


def test_a_rank_that_was_never_heard_is_lost() -> None:
    found = verdict(WAITS, silent={1: None})
    assert found is not None
    assert (found.rank, found.type) == (1, "LostRank")
    assert found.message.endswith("it was never heard")


def test_silence_is_no_loss_while_the_others_go_on() -> None:
    assert verdict(FREE, silent={1: FREE}) is None


def test_a_rank_that_ended_well_is_not_missed() -> None:
    found = verdict(SLEEPS, silent={1: replace(FREE, point="ended")})
    assert found is not None
    assert (found.rank, found.type) == (0, "StuckRank")


def test_many_lost_ranks_are_not_all_listed() -> None:
    found = verdict(WAITS, silent=dict.fromkeys(range(8, 24), FREE))
    assert found is not None
    assert found.message.startswith("ranks 8, 9, 10, 11, 12, 13, 14, 15 and 8 more on host a have")


def test_a_rank_alone_names_the_head_node_that_does_not_answer() -> None:
    found = lost_head(replace(WAITS, rank=3, host="b"), address="10.0.0.1", silent_s=51.2)
    assert (found.rank, found.host, found.type) == (0, "10.0.0.1", "LostRank")
    assert found.message.startswith("the head node 10.0.0.1 has been silent for 51 s")
    assert found.message.endswith("rank 3 on host b waits in step 5, computing gradients")


def test_a_beat_comes_back_as_it_was_sent() -> None:
    assert Beat.from_json(SLEEPS.to_json()) == SLEEPS


def test_points_of_a_step_are_in_the_order_in_which_a_step_comes_by() -> None:
    assert list(POINTS)[5:11] == ["data", "gradients", "word", "update", "report", "save"]
