"""Alerts about how a run fares: what failed, what is gone or silent, and what is nearly full."""

from __future__ import annotations

from typing import Any

from engine.errors import Finding
from titancli.monitor.alerts import alerts_of
from titancli.monitor.alerts.alert import Look
from titancli.monitor.diagnosis import diagnose
from titancli.monitor.fold import fold
from titancli.monitor.follow import State
from titancli.monitor.rows import rows_of
from titancli.monitor.run_state import RunState

FAILED = {"rank": 2, "host": "a", "type": "ValueError", "message": "boom\nmore"}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rank": 0, "time": 100.0, "kind": kind, **fields}


def fares(*events: dict[str, Any], state: State = "running", now: float = 101.0) -> dict[str, Finding]:
    seen = fold(RunState(), events)
    plan = {"world_size": 4, "gpu": "h200"}
    diagnosis = diagnose(seen, plan)
    rows = rows_of(seen, plan, diagnosis, {})
    found = alerts_of(Look("x", seen, state, seen.first_failure, {}, plan, rows, diagnosis, now))
    return {finding.rule: finding for finding in found}


BEGUN = [event("run_started", rank=rank, world_size=4) for rank in range(4)]


def test_rank_that_failed_is_said_first() -> None:
    end = event("run_ended", exit_code=1, reason="x", first_failure=FAILED)
    found = fares(*BEGUN, event("warning", message="hot"), end, state="failed")
    assert list(found) == ["W101", "W106"]
    assert found["W101"].message == "rank 2 failed first: ValueError: boom"
    assert found["W101"].fix == "titan logs x --rank 2 shows all that it said"


def test_checkpoint_that_could_not_be_saved_names_the_newest_kept() -> None:
    saves = [event("checkpoint", step=step, state=state) for step, state in ((4, "committed"), (6, "failed"))]
    assert fares(*BEGUN, *saves)["W102"].message == (
        "the checkpoint of step 6 could not be saved: the newest kept is that of step 4"
    )


def test_processes_that_are_gone_are_said_so() -> None:
    assert list(fares(*BEGUN, state="dead")) == ["W103"]


def test_silence_counts_only_while_the_run_should_speak_and_for_as_long_as_steps_take() -> None:
    slow = event("step", step=5, step_s=30.0, loss=1.0)
    assert fares(*BEGUN, now=190.0) == {}
    assert fares(*BEGUN, now=400.0)["W104"].message == "no rank has written anything for 5 min 00 s"
    assert fares(*BEGUN, event("phase", name="validate", state="begin"), now=400.0) == {}
    assert fares(*BEGUN, slow, now=400.0) == fares(*BEGUN, now=400.0, state="finished") == {}


def test_ranks_that_have_not_been_heard_of_are_named() -> None:
    assert fares(BEGUN[0])["W105"].message == "not heard of yet: rank 1-3"
    assert fares() == {}


def test_warning_of_a_rank_is_in_its_own_words() -> None:
    assert fares(*BEGUN, event("warning", rank=2, message="hot {x}"))["W106"].message == "rank 2: hot {x}"


def test_warning_of_many_ranks_is_one_alert_and_others_stay() -> None:
    same = [event("warning", rank=rank, message="hot") for rank in range(4)]
    seen = fold(RunState(), [*BEGUN, event("warning", rank=1, message="late"), *same, *same])
    assert [warning.line for warning in seen.warnings] == ["rank 1: late", "ranks 0-3: hot"]
    assert fares(*BEGUN, *same)["W106"].message == "ranks 0-3: hot"


def test_failed_run_of_which_no_rank_said_why_has_a_way_out() -> None:
    found = fares(*BEGUN, state="failed")
    assert list(found) == ["W107"]
    assert found["W107"].message == "the run failed and no rank said why"
    assert found["W107"].fix.startswith("titan logs x shows what ranks and torchrun printed last; ")


def test_many_ranks_close_to_their_memory_are_one_alert() -> None:
    events = [event("memory", rank=rank, reserved_bytes=96 + rank % 4, ooms=1) for rank in range(4)]
    seen = fold(RunState(), [*BEGUN, *events])
    plan = {"world_size": 4, "gpu": "h200", "stages": [{"memory": {"capacity_bytes": 100, "peak_bytes": 60}}]}
    diagnosis = diagnose(seen, plan)
    look = Look("x", seen, "running", None, {}, plan, rows_of(seen, plan, diagnosis, {}), diagnosis, 101.0)
    assert [finding.message for finding in alerts_of(look)] == [
        "ranks 0-3 use up to 99 B of 100 B (planned: 60 B): close to out of memory",
        "ranks 0-3 ran out of memory 1 time",
    ]
