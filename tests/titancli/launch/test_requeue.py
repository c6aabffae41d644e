"""Which jobs of Slurm go back into the queue. The lines are those that scontrol 22.05 wrote for real jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.config import Checkpoint as Saves
from engine.config import Config, Launch, Slurm
from titancli.launch.requeue import goes_back, has_progressed, requeue, taken_by
from titancli.monitor.run_state import RunState

RUNNING = "JobId=4 JobName=a JobState=RUNNING Reason=None Requeue=1 Restarts=0 TimeLimit=00:01:00"
NEAR = f"{RUNNING} StartTime=2026-11-30T16:50:32 EndTime=2026-11-30T16:51:32 Deadline=N/A"
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


@pytest.mark.parametrize(
    ("config", "state", "refuses", "said", "asked"),
    [
        (SAVES, SAVED, "", "preempted; job 4 is back in the queue, and goes on after step 8", ["show", "requeue"]),
        (
            SAVES,
            SAVED,
            "echo no >&2; exit 1",
            "preempted; the job cannot go back into the queue: no",
            ["show", "requeue"],
        ),
        (SAVES, RunState(), "", "preempted; the job does not go back into the queue: no checkpoint", ["show"]),
        (Config(), SAVED, "", "", ["show"]),
    ],
)
def test_a_job_asks_to_be_requeued_where_it_has_something_new_to_go_on_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: Config,
    state: RunState,
    refuses: str,
    said: str,
    asked: list[str],
) -> None:
    (tmp_path / "scontrol").write_text(
        SCONTROL.format(folder=tmp_path, told=PREEMPTED, requeue=refuses or "true"), "utf-8"
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert requeue("4", config, state).startswith(said)
    assert [line.split()[0] for line in (tmp_path / "asked").read_text("utf-8").splitlines()] == asked
