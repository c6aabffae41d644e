"""Which jobs of Slurm go back into the queue. The lines are those that scontrol 22.05 wrote for real jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.config import Checkpoint as Saves
from engine.config import Config, Launch, Slurm
from titancli.launch.requeue import fate, goes_back, has_progressed, put_back, taken_by
from titancli.monitor.run_state import RunState

RUNNING = "JobId=4 JobName=a JobState=RUNNING Reason=None Requeue=1 Restarts=0 TimeLimit=00:01:00"
NEAR = f"{RUNNING} StartTime=2026-11-30T16:50:32 EndTime=2026-11-30T16:51:32 Deadline=N/A"
# Of one that was put back while it ran, and of one that was cancelled.
PUT_BACK = "JobId=4 JobName=a JobState=COMPLETING Reason=None Requeue=1 Restarts=1 EndTime=Unknown"
CANCELLED = PUT_BACK.replace("Restarts=1", "Restarts=0")
PREEMPTED = f"{RUNNING} EndTime=Unknown PreemptEligibleTime=2026-11-30T16:52:47 PreemptTime=2026-11-30T16:52:50"
SAVED = RunState(saved_step=8, resumed_step=4)
SAVES = Config(checkpoint=Saves(enable=True))
SCONTROL = """#!/bin/sh
echo "$@" >>{folder}/asked
case "$1" in show) echo "{told}" ;; requeue) {requeue} ;; esac
"""


def at(clock: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(f"2026-11-30T{clock}").timestamp()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (NEAR, "the time limit of the job is near"),
        (PREEMPTED, "preempted"),
        (NEAR.replace("Requeue=1", "Requeue=0"), ""),
        (NEAR.replace("=RUNNING", "=COMPLETING"), ""),
        (f"{RUNNING} EndTime=Unknown PreemptTime=None", ""),
        (f"{RUNNING} EndTime=2026-12-01T16:51:32", ""),
        ("", ""),
    ],
)
def test_a_job_whose_time_slurm_takes_is_told_from_one_that_a_person_ends(told: str, reason: str) -> None:
    assert taken_by(told, 30.0, at("16:51:08")) == reason


def test_a_long_grace_brings_the_time_limit_near_earlier() -> None:
    assert [taken_by(NEAR, grace_s, at("16:41:32")) != "" for grace_s in (30.0, 600.0)] == [False, True]


@pytest.mark.parametrize(("saved", "resumed", "has"), [(8, 4, True), (8, None, True), (8, 8, False), (None, 4, False)])
def test_only_a_step_that_was_not_there_before_is_progress(saved: int | None, resumed: int | None, has: bool) -> None:
    assert has_progressed(RunState(saved_step=saved, resumed_step=resumed)) is has


def test_no_requeue_in_extra_keeps_a_job_out_of_the_queue() -> None:
    out = Launch(slurm=Slurm(extra=("--no-requeue",)))
    assert [goes_back(config) for config in (SAVES, Config(), SAVES.model_copy(update={"launch": out}))] == [
        True,
        False,
        False,
    ]


AGAIN = "Slurm has put job 4 back into the queue: it"


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, told: str, requeue: str = "true") -> None:
    """Makes this the scontrol that is found."""
    (folder / "scontrol").write_text(SCONTROL.format(folder=folder, told=told, requeue=requeue), "utf-8")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("told", "starts", "config", "state", "text", "goes_on", "asks"),
    [
        (PREEMPTED, 0, SAVES, SAVED, "preempted; job 4 goes back into the queue, and on after step 8", True, True),
        (PREEMPTED, 0, SAVES, RunState(), "preempted; the job does not go back into the queue: no", False, False),
        (PREEMPTED, 0, Config(), SAVED, "", False, False),
        (PUT_BACK, 0, SAVES, SAVED, f"{AGAIN} goes on after step 8", True, False),
        (PUT_BACK, 0, SAVES, RunState(), f"{AGAIN} starts at step 1", True, False),
        (PUT_BACK, 0, Config(), RunState(), f"{AGAIN} begins anew, as checkpoint.enable is false", True, False),
        (PUT_BACK, 1, SAVES, SAVED, "", False, False),
        (CANCELLED, 0, SAVES, SAVED, "", False, False),
    ],
)
def test_a_stopped_job_tells_what_becomes_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: str,
    starts: int,
    config: Config,
    state: RunState,
    text: str,
    goes_on: bool,
    asks: bool,
) -> None:
    scontrol(tmp_path, monkeypatch, told)
    found = fate("4", starts, config, state)
    assert (found.text[: len(text) or None], found.goes_on, found.asks) == (text, goes_on, asks)


@pytest.mark.parametrize(
    ("answers", "said"), [("true", ""), ("echo no >&2; exit 1", "the job cannot go back into the queue: no")]
)
def test_a_job_is_put_back_by_slurm_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str, said: str
) -> None:
    scontrol(tmp_path, monkeypatch, PREEMPTED, answers)
    assert put_back("4") == said
    assert (tmp_path / "asked").read_text("utf-8") == "requeue 4\n"
