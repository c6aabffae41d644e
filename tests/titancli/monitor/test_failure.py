"""Which rank is named as the first to fail, from what the ranks left behind."""

from __future__ import annotations

import json
from pathlib import Path

from engine.events import EventLog
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower


def record(run: Path, rank: int, message: str) -> None:
    """What a rank records for torchrun when it raises."""
    folder = run / "logs" / "x_1" / "attempt_0" / str(rank)
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(json.dumps({"message": {"message": message}}), "utf-8")


def end(run: Path, rank: int, blamed: int, kind: str, message: str) -> None:
    failure = {"rank": blamed, "host": "a", "type": kind, "message": message}
    EventLog(run, rank).write("run_ended", reason=f"{kind}: {message}", exit_code=1, first_failure=failure)


def test_c26_bad_step_that_all_ranks_tell_of_is_the_failure_of_the_rank_they_name(tmp_path: Path) -> None:
    told = "step 3: the gradient of w is not finite on rank 1; weights are those of step 2"
    for rank in (0, 1, 2):
        end(tmp_path, rank, 1, "NonFiniteStep", told)
        record(tmp_path, rank, f"NonFiniteStep: {told}")
    found = failures_of(tmp_path, Follower(tmp_path).read())
    assert [(failure.rank, failure.message) for failure in found] == [(1, told)]


def test_rank_that_could_write_no_event_is_known_by_what_it_recorded(tmp_path: Path) -> None:
    end(tmp_path, 0, 0, "RuntimeError", "Connection closed by peer")
    record(tmp_path, 0, "RuntimeError: Connection closed by peer")
    record(tmp_path, 1, "OSError: No space left on device")
    found = failures_of(tmp_path, Follower(tmp_path).read())
    assert [(failure.rank, failure.type) for failure in found] == [(1, "OSError"), (0, "RuntimeError")]
