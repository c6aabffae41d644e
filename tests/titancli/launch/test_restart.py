"""Which ends of a run call for another attempt, and how that is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.events import EventLog, event_file, read_new
from engine.planner.plan import Plan, plan
from engine.sources import Flag, Loaded, load
from titancli.launch.again import Again
from titancli.launch.restart import Restarts
from titancli.launch.run_folder import Place, create
from titancli.launch.supervise import Ending
from titancli.monitor.follow import Follower

FLAGS = {"job.name": "x", "checkpoint.enable": "true", "launch.max_restarts": "2"}


class Failing:
    """A run of two processes that fails as it is told to."""

    def __init__(self, folder: Path, **more: str) -> None:
        keys = FLAGS | {name.replace("__", "."): value for name, value in more.items()}
        flags = [Flag(key, value, f"--{key}") for key, value in keys.items()]
        self.loaded: Loaded = load(preset="quickstart", environ={}, flags=flags)
        self.plan: Plan = plan(self.loaded.config)
        self.run = folder / "x"
        create(Place(run=self.run), self.loaded, self.plan, "command")
        self.restarts = Restarts(self.loaded.config, self.run, began=0)

    def commit(self, step: int) -> None:
        folder = self.run / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"step": step}), "utf-8")

    def fail(
        self, kind: str, message: str = "boom", *, exit_code: int = 1, killed_by: str | None = None
    ) -> Again | None:
        """One attempt that ends with this failure of rank 1."""
        follower = Follower(self.run, from_now=True)
        (self.run / "logs" / "torchrun.log").write_text("said\n", "utf-8")
        if killed_by is None:
            failure = {"rank": 1, "host": "n1", "type": kind, "message": message}
            log = EventLog(self.run, 1)
            log.write("run_ended", reason=kind, exit_code=exit_code, first_failure=failure)
            log.close()
        ending = Ending(exit_code=exit_code, state=follower.read(), seconds=1.0, killed_by=killed_by)
        return self.restarts.after(self.loaded, self.plan, ending)


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    return Failing(tmp_path)


def test_failed_run_is_started_again_as_often_as_was_promised(failing: Failing) -> None:
    failing.commit(20)
    told = [failing.fail("ValueError") for _ in range(3)]
    assert [again.text for again in told if again] == [
        "restart 1 of 2: rank 1 failed first (ValueError: boom); goes on after step 20",
        "restart 2 of 2: rank 1 failed first (ValueError: boom); goes on after step 20",
        "not started again: 2 restarts of launch.max_restarts are used up",
    ]
    assert [again.plan is None for again in told if again] == [False, False, True]


def test_without_a_checkpoint_it_says_that_it_starts_at_the_first_step(failing: Failing) -> None:
    again = failing.fail("ValueError")
    assert again is not None
    assert again.text.endswith("starts at step 1, as no checkpoint is committed")


def test_run_whose_checkpoints_are_all_damaged_is_not_started_again(failing: Failing) -> None:
    failing.commit(20)
    (failing.run / "checkpoints" / "step-20" / "manifest.json").write_text('{"files": {"gone": 8}}', "utf-8")
    again = failing.fail("ValueError")
    assert again is not None
    assert again.plan is None
    assert again.text.startswith("not started again: no checkpoint of ")


def test_torchrun_that_was_killed_is_named(failing: Failing) -> None:
    again = failing.fail("", killed_by="SIGKILL")
    assert again is not None
    assert again.text.startswith("restart 1 of 2: torchrun was killed by SIGKILL from outside; ")


def test_restart_is_an_event_and_keeps_the_logs(failing: Failing) -> None:
    failing.commit(20)
    failing.fail("ValueError")
    failing.fail("OSError")
    events, _ = read_new(event_file(failing.run, 0))
    assert [(event["kind"], event["restarts"], event["step"]) for event in events] == [("warning", True, 20)] * 2
    kept = [failing.run / "logs" / f"earlier-{count}" / "torchrun.log" for count in (1, 2)]
    assert [log.read_text("utf-8") for log in kept] == ["said\n"] * 2
    assert not (failing.run / "logs" / "torchrun.log").exists()


@pytest.mark.parametrize(
    ("kind", "message", "reason"),
    [
        ("NonFiniteStep", "step 3: the loss is not finite on rank 1", "the same numbers would come again"),
        ("OSError", "[Errno 28] No space left on device", "the disk is full"),
    ],
)
def test_c26_what_would_come_again_is_not_tried_again(failing: Failing, kind: str, message: str, reason: str) -> None:
    assert failing.fail(kind, message) == Again(text=f"not started again: {reason}", plan=None)


@pytest.mark.parametrize("exit_code", [0, 2, 3, 130, 143])
def test_only_a_failure_is_started_again(failing: Failing, exit_code: int) -> None:
    assert failing.fail("TitanError", exit_code=exit_code) is None


def test_run_that_was_promised_none_is_not_started_again(tmp_path: Path) -> None:
    assert Failing(tmp_path, launch__max_restarts="0").fail("ValueError") is None
