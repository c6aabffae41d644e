"""The last words of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.planner.plan import plan
from engine.sources import load, to_toml
from titancli.launch.summary import cause_outside, failure_text, named, summary
from titancli.launch.supervise import Ending
from titancli.monitor.fold import fold
from titancli.monitor.ran_out import RanOut
from titancli.monitor.run_state import Failure, RunState

PLAN = plan(load(preset="quickstart", environ={}).config)


def state() -> RunState:
    steps = [
        {"kind": "step", "rank": 0, "step": number, "loss": loss, "tokens_per_s_per_gpu": speed, "step_s": 1.0}
        for number, loss, speed in ((1, 5.6, 10.0), (2, 4.0, 900.0), (3, 3.0, 1100.0), (4, 2.5, 1000.0))
    ]
    return fold(RunState(), [*steps, {"kind": "memory", "rank": 1, "host_rss_bytes": 2**29}])


def test_finished_run_is_summed_up() -> None:
    ending = Ending(exit_code=0, state=state(), seconds=72.0)
    assert summary(ending, PLAN, Path("runs/x"), steps=4) == (
        "done: 4 of 4 steps in 1 min 12 s\n"
        "  loss         5.6000 -> 2.5000\n"
        "  speed        1,000 tokens/s/process (median without step 1)\n"
        "  peak memory  512 MiB a process; weights, gradients and optimizer by plan: 15.8 MiB\n"
        "  run folder   runs/x\n"
        "  next         titan monitor x; titan logs x"
    )


def test_run_that_was_validated_tells_its_newest_loss_on_held_out_text() -> None:
    told = fold(state(), [{"kind": "validation", "rank": 0, "step": 4, "loss": 2.75}])
    text = summary(Ending(exit_code=0, state=told, seconds=3.0), PLAN, Path("runs/x"), steps=4)
    assert text.splitlines()[2] == "  validation   2.7500 after step 4"


def test_c37_run_whose_data_ended_says_so_in_its_summary() -> None:
    reason = "the data ended after step 2 on all data ranks: 5 sequences in all, 2 a step"
    ended = fold(RunState(), [{"kind": "step", "rank": 0, "step": 2, "loss": 4.0}])
    ended = fold(ended, [{"kind": "run_ended", "rank": 0, "reason": reason, "exit_code": 0, "first_failure": None}])
    text = summary(Ending(exit_code=0, state=ended, seconds=3.0), PLAN, Path("runs/x"), steps=10)
    assert text.splitlines()[:2] == ["done: 2 of 10 steps in 3.0 s", f"  ended early  {reason}"]


def test_run_that_did_all_its_steps_says_nothing_of_its_end() -> None:
    ended = fold(state(), [{"kind": "run_ended", "rank": 0, "reason": "completed", "exit_code": 0}])
    assert "ended early" not in summary(Ending(exit_code=0, state=ended, seconds=3.0), PLAN, Path("runs/x"), steps=4)


@pytest.mark.parametrize(("code", "head"), [(130, "interrupted: no step"), (143, "stopped by a signal: no step")])
def test_run_stopped_before_its_first_step_invents_nothing(code: int, head: str) -> None:
    text = summary(Ending(exit_code=code, state=RunState(), seconds=3.0), PLAN, Path("runs/x"), steps=4)
    assert text.startswith(head)
    assert "loss         n/a -> n/a" in text
    assert "peak memory  n/a (not measured) a process" in text


def test_speed_that_is_not_known_has_no_unit() -> None:
    ended = fold(RunState(), [{"kind": "step", "rank": 0, "step": 1, "loss": 4.0, "tokens_per_s_per_gpu": None}])
    text = summary(Ending(exit_code=130, state=ended, seconds=3.0), PLAN, Path("runs/x"), steps=4)
    assert "  speed        n/a (no step after the first was logged)\n" in text


def failure(rank: int, kind: str = "ValueError", message: str = "boom-17") -> Failure:
    return Failure(rank=rank, host=None, type=kind, message=message)


def test_c41_cause_is_first_and_the_rest_is_secondary_and_short(tmp_path: Path) -> None:
    lost = [failure(rank, "RuntimeError", "Connection closed by peer\nand 40 lines more") for rank in range(2, 500)]
    logs = tmp_path / "logs" / "x_1" / "attempt_0" / "1"
    logs.mkdir(parents=True)
    assert failure_text([failure(1), *lost], tmp_path, torchrun_tail="").splitlines() == [
        "error[R202]: rank 1 failed first: ValueError: boom-17",
        f"  --> {logs}/stderr.log",
        f"  fix: mend what it says; its whole log: titan logs {tmp_path} --rank 1",
        *(f"secondary: rank {rank}: RuntimeError: Connection closed by peer" for rank in (2, 3, 4)),
        "and 495 more ranks after it",
    ]


def test_place_of_the_cause_stands_between_its_message_and_its_log(tmp_path: Path) -> None:
    told = replace(failure(1), place="model.py:7 in forward")
    lines = failure_text([told], tmp_path, torchrun_tail="").splitlines()
    assert lines[:2] == ["error[R202]: rank 1 failed first: ValueError: boom-17", "  at model.py:7 in forward"]


def test_message_of_many_lines_is_cut(tmp_path: Path) -> None:
    text = failure_text([failure(0, "KeyError", "\n".join("abcdefghijkl"))], tmp_path, torchrun_tail="")
    assert text.splitlines()[:2] == ["error[R202]: rank 0 failed first: KeyError: a", "  b"]
    assert len(text.splitlines()) < 20


def test_line_of_a_message_without_end_is_cut(tmp_path: Path) -> None:
    text = failure_text([failure(0, "KeyError", "x" * 4000)], tmp_path, torchrun_tail="")
    assert len(text.splitlines()[0]) < 500


def test_what_ended_a_run_from_outside_goes_before_a_rank_that_is_gone_without_a_word(tmp_path: Path) -> None:
    gone = failure(1, "EarlyExit", "the process ended with exit code 0 and told nothing")
    assert failure_text([gone], tmp_path, torchrun_tail="", outside="error[R204]: x").startswith("error[R204]: x\n")


def test_failure_that_nobody_explains_shows_the_end_of_torchruns_log(tmp_path: Path) -> None:
    text = failure_text([], tmp_path, torchrun_tail="no such option\nusage")
    assert text == (
        "error[R201]: the run failed, and no rank said why; the end of torchrun's own log:\n"
        "  | no such option\n  | usage"
    )


@pytest.mark.parametrize(("run", "words"), [("runs/x", "x"), ("other/x", "other/x"), ("my runs/x", "'my runs/x'")])
def test_run_is_named_so_that_the_next_command_finds_it(run: str, words: str) -> None:
    assert named(Path(run)) == words


def test_killed_torchrun_is_the_cause_where_ranks_only_lost_it(tmp_path: Path) -> None:
    outside = cause_outside(Ending(exit_code=1, state=state(), seconds=3.0, killed_by="SIGKILL"), tmp_path)
    text = failure_text(
        [failure(0, "RuntimeError", "Connection closed by peer")], tmp_path, torchrun_tail="", outside=outside
    )
    assert text.splitlines() == [
        "error[R204]: torchrun, the parent of all ranks, was killed by SIGKILL from outside",
        "  fix: look in the system's log for who did it, the out-of-memory killer for one",
        "secondary: rank 0: RuntimeError: Connection closed by peer",
    ]


def test_full_disk_is_the_cause_where_ranks_could_write_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(exit_code=1, state=state(), seconds=3.0)
    assert cause_outside(ending, tmp_path) == ""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4095))
    outside = cause_outside(ending, tmp_path)
    assert failure_text([], tmp_path, torchrun_tail="", outside=outside) == outside
    assert outside.startswith(f"error[R205]: the disk that holds {tmp_path} is full")


def test_rank_that_told_its_own_cause_goes_before_what_happened_outside(tmp_path: Path) -> None:
    text = failure_text([failure(1)], tmp_path, torchrun_tail="", outside="error[R205]: full")
    assert text.startswith("error[R202]: rank 1 failed first: ValueError: boom-17")


def saving_run(folder: Path, *committed: int) -> Path:
    """The folder of a run that keeps checkpoints, with some of them."""
    run = folder / "x"
    for step in committed:
        checkpoint = run / "checkpoints" / f"step-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}", "utf-8")
    run.mkdir(exist_ok=True)
    (run / "config.toml").write_text("[checkpoint]\nenable = true\n", "utf-8")
    return run


@pytest.mark.parametrize("code", [130, 143])
def test_run_that_was_stopped_says_what_it_saved_and_the_line_that_goes_on(code: int, tmp_path: Path) -> None:
    run = saving_run(tmp_path, 2, 4)
    text = summary(Ending(exit_code=code, state=state(), seconds=3.0), PLAN, run, steps=40)
    assert "  saved        after step 4\n" in text
    assert f"  go on with   titan launch {run}/config.toml --resume --name x\n" in text


def test_run_that_goes_on_by_itself_says_no_line_that_would(tmp_path: Path) -> None:
    run = saving_run(tmp_path, 4)
    text = summary(Ending(exit_code=143, state=state(), seconds=3.0), PLAN, run, steps=40, goes_on=True)
    assert "  saved        after step 4\n" in text
    assert "--resume" not in text


def test_run_that_was_stopped_before_its_first_checkpoint_says_so(tmp_path: Path) -> None:
    text = summary(Ending(exit_code=143, state=state(), seconds=3.0), PLAN, saving_run(tmp_path), steps=40)
    assert "  saved        nothing yet: no checkpoint is committed\n" in text


def test_run_that_failed_names_its_newest_checkpoint_and_the_line_that_goes_on(tmp_path: Path) -> None:
    run = saving_run(tmp_path, 2, 4)
    line = f"  saved: newest checkpoint: step 4; go on with: titan launch {run}/config.toml --resume --name x"
    assert failure_text([failure(1)], run, torchrun_tail="").splitlines()[-1] == line
    assert failure_text([], run, torchrun_tail="", outside="error[R205]: full").splitlines()[-1] == line


def test_run_whose_checkpoints_are_all_damaged_says_that_and_no_step(tmp_path: Path) -> None:
    run = saving_run(tmp_path, 4)
    (run / "checkpoints" / "step-4" / "manifest.json").write_text('{"files": {"gone": 8}}', "utf-8")
    last = failure_text([failure(1)], run, torchrun_tail="").splitlines()[-1]
    assert "nothing that can be loaded: no checkpoint of" in last
    assert "step-4 is damaged: its file gone is not there; go on once that is mended with: titan launch" in last


def test_stack_of_a_stuck_rank_is_shown_below_its_error(tmp_path: Path) -> None:
    stack = "\n".join(f"from frame {number}" for number in range(9))
    lines = failure_text([failure(1, "StuckRank", f"rank 1 made no progress\n{stack}")], tmp_path, torchrun_tail="")
    assert lines.splitlines()[:3] == [
        "error[R202]: rank 1 failed first: StuckRank: rank 1 made no progress",
        "  from frame 0",
        "  from frame 1",
    ]
    assert "  from frame 8" in lines


def test_out_of_memory_is_told_with_its_figures_and_a_change_that_leaves_room(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(load(preset="quickstart", environ={}).config), "utf-8")
    seen = RanOut(moment="forward", step=1, asked_bytes=1 << 20, free_bytes=1 << 30, total_bytes=1 << 33)
    short = Failure(rank=1, host=None, type="RuntimeError", message="can't allocate memory " * 20, ran_out=seen)
    lines = failure_text([short], tmp_path, torchrun_tail="", plan=PLAN).splitlines()
    assert len(lines[0]) < 250
    assert lines[1] == (
        "  moment     step 1, forward: asked for 1.0 MiB, and 1.0 GiB of the machine's 8.0 GiB were free"
    )
    assert lines[2].startswith("  planned    ")
    assert lines[3].startswith("  fix: set training.local_batch_size to ")
