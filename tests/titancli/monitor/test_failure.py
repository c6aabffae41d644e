"""Which rank is named as the first to fail, from what the ranks left behind."""

from __future__ import annotations

import json
from pathlib import Path

from engine.events import EventLog
from engine.parent import SHOWN_BY_ITSELF
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


def report_exit(run: Path, rank: int, code: int, *, second: int) -> None:
    """What torchrun writes of a rank that failed."""
    (run / "logs").mkdir(exist_ok=True)
    with (run / "logs" / "torchrun.log").open("a") as log:
        log.write(f"  time      : 2026-11-30_18:00:{second:02}\n  host      : a\n")
        log.write(f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 9)\n")


def lose_peer(run: Path, rank: int) -> None:
    end(run, rank, rank, "RuntimeError", "Connection closed by peer")
    record(run, rank, "RuntimeError: Connection closed by peer")


def begin(run: Path, rank: int, stderr: str) -> None:
    """A rank that has begun and written to its log."""
    EventLog(run, rank).write("phase", name="train", state="begin", seconds=None)
    folder = run / "logs" / "x_1" / "attempt_0" / str(rank)
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(stderr, "utf-8")


def test_rank_that_exits_without_a_word_is_the_cause_of_those_that_lost_it(tmp_path: Path) -> None:
    lose_peer(tmp_path, 0)
    begin(tmp_path, 1, "licence expired\n\n")
    report_exit(tmp_path, 1, 7, second=1)
    report_exit(tmp_path, 0, 1, second=2)
    first = failures_of(tmp_path, Follower(tmp_path).read())[0]
    said = "the process ended with exit code 7 and told nothing; its last line: licence expired"
    assert (first.rank, first.type, first.message) == (1, "EarlyExit", said)


def test_rank_that_exits_as_if_all_were_well_is_the_cause_of_those_that_lost_it(tmp_path: Path) -> None:
    lose_peer(tmp_path, 0)
    begin(tmp_path, 1, "")
    report_exit(tmp_path, 0, 1, second=2)
    found = failures_of(tmp_path, Follower(tmp_path).read())
    assert [(failure.rank, failure.type) for failure in found] == [(1, "EarlyExit"), (0, "RuntimeError")]


def test_rank_that_held_the_interpreter_is_told_with_the_place_where_it_did(tmp_path: Path) -> None:
    end(tmp_path, 0, 1, "LostRank", "rank 1 has been silent")
    threads = 'Thread 0x01 (most recent call first):\n  File "b.py", line 5 in wait\n\n'
    threads += 'Thread 0x02 (most recent call first):\n  File "c.py", line 7 in match\n  File "d.py", line 9 in main\n'
    begin(tmp_path, 1, f"Timeout (0:01:06)!\n{threads}")
    first = failures_of(tmp_path, Follower(tmp_path).read())[0]
    head = "none of its threads could run for 66 s: it was stopped, or keeps Python's interpreter to itself at "
    assert (first.type, first.message) == ("StuckRank", f"{head}c.py:7 in match\nfrom d.py:9 in main")


def test_frozen_rank_that_torchrun_kills_later_stays_the_lost_one(tmp_path: Path) -> None:
    end(tmp_path, 0, 1, "LostRank", "rank 1 has been silent")
    begin(tmp_path, 1, "")
    report_exit(tmp_path, 0, 1, second=1)
    report_exit(tmp_path, 1, -9, second=31)
    first = failures_of(tmp_path, Follower(tmp_path).read())[0]
    assert (first.rank, first.type) == (1, "LostRank")


def test_lost_rank_that_showed_its_stack_when_asked_is_told_with_it(tmp_path: Path) -> None:
    frames = '  File "c.py", line 7 in match\n'
    begin(tmp_path, 0, f"Current thread 0x02 (most recent call first):\n{frames}")
    begin(tmp_path, 1, f"Current thread 0x02 (most recent call first):\n{frames}")
    end(tmp_path, 0, 1, "LostRank", "rank 1 has been silent")
    found = failures_of(tmp_path, Follower(tmp_path).read())
    head = "none of its threads could run: it was stopped, or keeps Python's interpreter to itself at "
    assert [(failure.rank, failure.message) for failure in found] == [(1, f"{head}c.py:7 in match")]


def test_two_parts_of_a_run_that_are_cut_off_from_each_other_both_stay_lost(tmp_path: Path) -> None:
    stacks = 'Thread 0x02 (most recent call first):\n  File "c.py", line 7 in scatter\n'
    for rank, other in ((0, 1), (1, 0)):
        shown = f"rank {rank} made no progress for 8 s in step 8{SHOWN_BY_ITSELF}\n{stacks}"
        begin(tmp_path, rank, f"{shown}LostRank: rank {other} has been silent\n")
        end(tmp_path, rank, other, "LostRank", f"rank {other} has been silent")
    found = failures_of(tmp_path, Follower(tmp_path).read())
    assert {failure.message for failure in found} == {"rank 0 has been silent", "rank 1 has been silent"}
