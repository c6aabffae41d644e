"""What events add up to."""

from __future__ import annotations

from typing import Any

import pytest

from titancli.monitor.curve import MOST_POINTS
from titancli.monitor.fold import KEPT_REPORTS, fold
from titancli.monitor.ran_out import Other
from titancli.monitor.run_state import Failure, RunState, follows


def event(kind: str, rank: int = 0, time: float = 100.0, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "time": time, "rank": rank, "kind": kind, **fields}


def step(number: int, loss: float | None = 2.0, time: float = 100.0, **fields: Any) -> dict[str, Any]:
    values = {"grad_norm": 1.0, "lr": 0.1, "step_s": 0.5, "tokens_per_s_per_gpu": 1000.0, "mfu_pct": None}
    return event("step", time=time, step=number, loss=loss, **(values | fields))


def seen(*events: dict[str, Any]) -> RunState:
    return fold(RunState(), events)


def failed(rank: int, time: float, kind: str, message: str) -> dict[str, Any]:
    failure = {"rank": rank, "host": "a", "type": kind, "message": message}
    return event("run_ended", rank, time, reason=f"{kind}: {message}", exit_code=1, first_failure=failure)


def test_fold_is_the_same_in_one_go_and_in_pieces() -> None:
    events = [
        event("phase", name="build", state="begin"),
        event("run_started", world_size=2, host="a", pid=5, gpu=None, plan={"gpu": "cpu"}),
        event("run_started", 1, world_size=2, host="a", pid=6, gpu={"name": "H200"}),
        step(1),
        step(2),
        event("memory", 1, active_bytes=5, reserved_bytes=7, peak_active_bytes=8, peak_reserved_bytes=9),
    ]
    whole, pieces = seen(*events), RunState()
    for one in events:
        pieces = fold(pieces, [one])
    assert whole == pieces


def test_fold_changes_nothing_that_it_was_given() -> None:
    before = seen(step(1))
    fold(before, [step(2), event("memory", 1, active_bytes=5)])
    assert (before.step, list(before.ranks)) == (1, [0])


def test_c25_loss_is_that_of_rank_0_and_never_a_placeholder() -> None:
    state = seen(step(1, loss=3.0), {**step(1, loss=99.0), "rank": 1}, step(2, loss=None))
    assert (state.loss, state.first_loss, state.losses) == (None, 3.0, (3.0,))


def test_first_step_is_left_out_of_speeds_and_paces() -> None:
    state = seen(step(1, tokens_per_s_per_gpu=50.0, step_s=20.0), step(2), step(3))
    assert (state.speeds, state.step_seconds) == ((1000.0, 1000.0), (0.5, 0.5))


def test_long_run_keeps_only_what_is_shown() -> None:
    state = seen(*(step(number, loss=float(number)) for number in range(1, 500)))
    assert (state.losses[-1], state.first_loss, len(state.reports)) == (499.0, 1.0, KEPT_REPORTS)
    assert MOST_POINTS / 2 <= len(state.losses) <= MOST_POINTS


@pytest.mark.parametrize(
    "strange",
    [
        event("hologram", colour="green"),
        event("step"),
        event("step", step="seven", loss=True),
        event("memory", active_bytes="much"),
        event("gpu", sm_pct=None),
        event("run_started", plan=3, gpu="x", world_size=None),
        event("run_ended", first_failure="?"),
        event("phase"),
        {"kind": "step"},
        {"kind": "step", "rank": "0"},
        {"kind": ["step"], "rank": 0},
    ],
    ids=lambda value: str(value.get("kind")),
)
def test_event_that_is_strange_breaks_nothing(strange: dict[str, Any]) -> None:
    state = fold(seen(step(1)), [strange, step(2)])
    assert state.step == 2


def test_memory_of_a_gpu_is_what_its_allocator_reserves_else_that_of_the_process() -> None:
    on_gpu = event("memory", 0, active_bytes=5, reserved_bytes=7, peak_reserved_bytes=9, host_rss_bytes=99)
    on_cpu = event("memory", 1, active_bytes=None, reserved_bytes=None, host_rss_bytes=99)
    ranks = seen(on_gpu, on_cpu).ranks
    assert [(ranks[rank].used_bytes, ranks[rank].peak_bytes) for rank in (0, 1)] == [(7, 9), (99, 99)]


def test_peak_is_the_highest_ever_told() -> None:
    told = [event("memory", 0, host_rss_bytes=size) for size in (5, 9, 3)]
    assert (seen(*told).ranks[0].peak_bytes, seen(*told).ranks[0].used_bytes) == (9, 3)


def test_c45_meter_that_is_missing_is_unknown_and_not_zero() -> None:
    rank = seen(event("gpu", uuid="GPU-1", sm_pct=None, reasons={"sm_pct": "permission"})).ranks[0]
    assert (rank.uuid, rank.meters["sm_pct"], rank.meters["reasons"]) == ("GPU-1", None, {"sm_pct": "permission"})


def profiled(number: int, time: float = 100.0, **fields: Any) -> dict[str, Any]:
    return step(number, time=time, breakdown={"data_s": 0.1, "compute_s": 0.3, "exposed_comm_s": {"tp": 0.1}}, **fields)


def test_newest_profiles_of_a_rank_are_kept_with_their_steps() -> None:
    unprofiled = step(60, breakdown={"data_s": 0.05, "compute_s": None, "other_s": 0.45})
    rank = seen(*(profiled(number) for number in (10, 20, 30, 40, 50)), unprofiled).ranks[0]
    assert [profile.step for profile in rank.profiles] == [30, 40, 50]
    assert rank.profile == rank.profiles[-1]
    assert rank.data_share == pytest.approx(0.1)


def test_profiles_outlive_a_restart_until_their_steps_are_done_anew() -> None:
    state = seen(*FIRST_ATTEMPT, profiled(20), profiled(30), begins(0, 200.0), starts(0, 201.0, resumed_from=20))
    assert [profile.step for profile in state.ranks[0].profiles] == [20, 30]
    state = fold(state, [profiled(30, time=210.0)])
    assert [(profile.step, profile.time) for profile in state.ranks[0].profiles] == [(20, 100.0), (30, 210.0)]


@pytest.mark.parametrize("first", [{}, {"resumed_from": 3}], ids=repr)
def test_first_step_of_a_process_is_no_profile(first: dict[str, Any]) -> None:
    state = seen(begins(0, 1.0), starts(0, 2.0, **first), profiled(1 + first.get("resumed_from", 0)))
    assert (state.ranks[0].profile, state.ranks[0].data_share) == (None, None)


def test_allocator_that_asks_again_is_seen_when_its_count_rises() -> None:
    counts = ((1.0, 2), (5.0, 2), (9.0, 4), (12.0, 4))
    rank = seen(*(event("memory", time=time, alloc_retries=count) for time, count in counts)).ranks[0]
    assert (rank.retried_time, rank.alloc_retries) == (9.0, 4)


def test_gradient_norm_that_is_told_as_null_is_not_finite() -> None:
    assert [report.is_finite for report in seen(step(1), step(2, grad_norm=None)).reports] == [True, False]


def test_phase_is_the_one_that_began_last_and_has_not_ended() -> None:
    state = seen(event("phase", name="build", state="begin"))
    assert state.phase == "build"
    state = fold(state, [event("phase", name="build", state="end"), event("phase", name="train", state="begin")])
    assert state.phase == "train"


def test_c41_cause_comes_before_what_follows_from_it_whoever_wrote_first() -> None:
    state = seen(
        failed(0, 10.0, "RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]"),
        failed(2, 10.4, "DistBackendError", "NCCL communicator was aborted on rank 2"),
        failed(1, 10.9, "ValueError", "boom-17"),
    )
    assert [failure.rank for failure in state.failures] == [1, 0, 2]


def test_c41_of_two_causes_the_earlier_is_the_first() -> None:
    state = seen(failed(3, 11.0, "ValueError", "late"), failed(1, 10.0, "KeyError", "early"))
    assert state.first_failure == Failure(rank=1, host="a", type="KeyError", message="early")


def test_failure_that_every_rank_reports_of_one_is_told_once() -> None:
    named = {"rank": 1, "host": "b", "type": "NonFiniteStep", "message": "step 3"}
    ended = [event("run_ended", rank, reason="x", exit_code=1, first_failure=named) for rank in range(4)]
    assert seen(*ended).failures == (Failure(rank=1, host="b", type="NonFiniteStep", message="step 3"),)


def test_resumed_rank_is_no_longer_ended_nor_failed() -> None:
    state = seen(failed(0, 10.0, "ValueError", "x"), event("phase", name="build", state="begin"))
    assert (state.first_failure, state.ranks[0].has_ended) == (None, False)


def test_own_error_is_no_lost_peer() -> None:
    assert not follows(Failure(rank=0, host=None, type="OutOfMemoryError", message="CUDA out of memory"))
    assert follows(Failure(rank=0, host=None, type="RuntimeError", message="Connection reset by peer"))


@pytest.mark.parametrize("figure", [float("inf"), float("nan"), 1e308, -1e308, 10**400, "x", [1.0], True])
def test_figure_that_no_mean_survives_is_not_known(figure: object) -> None:
    state = fold(RunState(), [{"kind": "step", "rank": 0, "step": 3, "loss": figure, "step_s": figure, "time": figure}])
    assert (state.step, state.loss, state.losses, state.step_s, state.last_time) == (3, None, (), None, None)
    memory = fold(RunState(), [{"kind": "memory", "rank": 0, "active_bytes": figure}])
    assert memory.ranks[0].used_bytes is None


RESTART = event("warning", 0, 20.0, message="out of memory on rank 1: started again", restarts=True)
OUT_OF_MEMORY = failed(1, 10.0, "OutOfMemoryError", "no room")


@pytest.mark.parametrize("events", [(OUT_OF_MEMORY, RESTART), (RESTART, OUT_OF_MEMORY)], ids=["in order", "by file"])
def test_what_ended_before_all_were_started_again_is_no_failure(events: tuple[dict[str, Any], ...]) -> None:
    state = seen(step(1), *events)
    assert (state.first_failure, state.ranks[1].has_ended) == (None, False)


def test_a_failure_after_a_restart_is_one() -> None:
    state = seen(OUT_OF_MEMORY, RESTART, failed(1, 30.0, "ValueError", "boom"))
    assert state.first_failure == Failure(rank=1, host="a", type="ValueError", message="boom")


def test_curves_begin_anew_after_a_restart() -> None:
    state = seen(step(1, loss=9.0), RESTART, step(1, loss=3.0))
    assert (state.losses, state.first_loss) == ((3.0,), 3.0)
    assert [warning.line for warning in state.warnings] == ["rank 0: out of memory on rank 1: started again"]


def begins(rank: int, time: float) -> dict[str, Any]:
    return event("phase", rank, time, name="build", state="begin")


def starts(rank: int, time: float, *, world_size: int = 2, resumed_from: Any = None) -> dict[str, Any]:
    return event("run_started", rank, time, world_size=world_size, host="a", pid=5, resumed_from=resumed_from)


FIRST_ATTEMPT = (
    begins(0, 1.0),
    starts(0, 2.0),
    *(step(number, loss=10.0 - number, time=3.0) for number in range(1, 6)),
)


@pytest.mark.parametrize("resumed_from", [3, {"step": 3, "path": "x"}, "runs/x/checkpoints/step-3"], ids=repr)
def test_resumed_run_goes_on_from_its_step_with_the_curve_before_it(resumed_from: Any) -> None:
    state = seen(*FIRST_ATTEMPT, begins(0, 20.0), starts(0, 21.0, resumed_from=resumed_from))
    assert (state.step, state.resumed_step, state.losses, state.first_loss) == (3, 3, (9.0, 8.0, 7.0), 9.0)
    state = fold(state, [step(4, loss=6.5, time=22.0)])
    assert (state.step, state.losses, state.logged_steps) == (4, (9.0, 8.0, 7.0, 6.5), (1, 2, 3, 4))


def test_run_that_begins_anew_forgets_the_curve() -> None:
    state = seen(*FIRST_ATTEMPT, begins(0, 20.0), starts(0, 21.0), step(1, loss=4.0, time=22.0))
    assert (state.losses, state.first_loss, state.starts) == ((4.0,), 4.0, 2)


def test_first_step_after_a_resume_is_left_out_of_the_speeds() -> None:
    state = seen(*FIRST_ATTEMPT, begins(0, 20.0), starts(0, 21.0, resumed_from=3), step(4), step(5))
    assert state.speeds == (1000.0,)


OLD_END = failed(1, 10.0, "ValueError", "of the first attempt")


@pytest.mark.parametrize("by_file", [False, True])
def test_failure_of_an_earlier_attempt_does_not_make_the_run_failed(*, by_file: bool) -> None:
    first, again = (*FIRST_ATTEMPT, begins(1, 1.1)), (begins(0, 20.0),)
    state = seen(*first, *again, OLD_END) if by_file else seen(*first, OLD_END, *again)
    assert state.first_failure is None


def test_failure_just_before_rank_0_has_begun_is_one_of_this_attempt() -> None:
    state = seen(begins(1, 19.9), failed(1, 19.95, "ValueError", "boom"), begins(0, 20.0))
    assert state.first_failure is not None


def test_ranks_of_a_larger_attempt_before_are_left_out() -> None:
    large = [starts(rank, 2.0, world_size=4) for rank in range(4)]
    state = seen(begins(0, 1.0), *large, begins(0, 20.0), starts(0, 21.0, world_size=2), starts(1, 21.0, world_size=2))
    assert sorted(state.ranks) == [0, 1]


def saved(state: str, number: int, time: float = 50.0, rank: int = 0) -> dict[str, Any]:
    return event("checkpoint", rank, time, step=number, path="x", seconds=1.0, bytes=9, state=state)


def test_checkpoint_is_being_saved_until_it_is_committed() -> None:
    assert seen(saved("begun", 4)).saving_step == 4
    state = seen(saved("begun", 4), saved("committed", 4, time=51.0))
    assert (state.saving_step, state.saved_step, state.saved_time) == (None, 4, 51.0)


def test_checkpoint_that_failed_leaves_the_one_before_as_the_newest() -> None:
    state = seen(saved("committed", 2), saved("begun", 4), saved("failed", 4, rank=1))
    assert (state.saved_step, state.unsaved_step, state.saving_step) == (2, 4, None)


def test_rank_that_others_lost_is_named_before_those_that_follow_and_after_its_own_word() -> None:
    lost = failed(0, 10.0, "LostRank", "rank 1 has not been heard of for 30 s: connection closed by peer")
    lost["first_failure"]["rank"] = 1
    state = seen(failed(2, 9.0, "RuntimeError", "Connection closed by peer"), lost)
    assert [failure.type for failure in state.failures] == ["LostRank", "RuntimeError"]
    state = fold(state, [failed(1, 11.0, "ValueError", "boom")])
    assert [failure.type for failure in state.failures] == ["ValueError", "LostRank", "RuntimeError"]


def test_out_of_memory_keeps_its_figures() -> None:
    end = failed(1, 10.0, "OutOfMemoryError", "CUDA out of memory")
    figures = {"moment": "backward", "step": 1, "asked_bytes": 5, "limit": None, "others": [{"pid": 7, "bytes": 3}]}
    ran_out = seen(end | {"memory": figures}).failures[0].ran_out
    assert ran_out is not None
    assert (ran_out.moment, ran_out.asked_bytes, ran_out.others) == ("backward", 5, (Other(pid=7, name=None, bytes=3),))


def test_newest_validation_is_kept_and_a_loss_that_is_null_is_unknown() -> None:
    state = seen(step(4), event("validation", step=2, loss=3.0), event("validation", step=4, loss=2.5))
    assert (state.validation_step, state.validation_loss) == (4, 2.5)
    assert seen(event("validation", step=2, loss=None)).validation_loss is None
    assert seen(event("validation", 1, step=2, loss=3.0)).validation_step is None
