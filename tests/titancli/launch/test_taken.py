"""A run folder that stands there already: resumed, complete, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.events import EventLog, event_file
from engine.planner.plan import plan
from engine.settled import read_settled, write_settled
from engine.sources import Flag, Loaded, load
from titancli.launch.run_folder import Place, choose, create
from titancli.launch.taken import Resumed, completed
from titancli.monitor.follow import Follower, Launcher, judge

DEAD = Launcher(pid=2**22 + 1, host=Launcher.this_process().host, created=1.0)


def config(**flags: str) -> Loaded:
    keys = {"job.name": "x", "checkpoint.enable": "true"} | {
        name.replace("__", "."): value for name, value in flags.items()
    }
    return load(preset="quickstart", environ={}, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def left(loaded: Loaded, *, exit_code: int | None = None, steps: tuple[int, ...] = ()) -> Path:
    """A run folder as a launch leaves it, with checkpoints of these steps."""
    place = choose(loaded, resume=False, overwrite=False, now_s=0.0)
    assert isinstance(place, Place)
    create(place, loaded, plan(loaded.config), "command")
    Launcher(pid=DEAD.pid, host=DEAD.host, created=DEAD.created, exit_code=exit_code).write(place.run)
    for step in steps:
        checkpoint = place.run / "checkpoints" / f"step-{step}"
        checkpoint.mkdir()
        (checkpoint / "manifest.json").write_text(json.dumps({"step": step}), "utf-8")
    return place.run


def resumed(loaded: Loaded, *, resume: bool = True) -> Resumed:
    place = choose(loaded, resume=resume, overwrite=False, now_s=0.0)
    assert isinstance(place, Place)
    assert place.resumed is not None
    return place.resumed


def refusal(loaded: Loaded, *, resume: bool = False) -> str:
    with pytest.raises(TitanError) as caught:
        choose(loaded, resume=resume, overwrite=False, now_s=0.0)
    return str(caught.value)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("exit_code", [None, 1, 130, 143])
def test_c51_same_config_goes_on_from_the_newest_checkpoint_and_says_so(exit_code: int | None, resume: bool) -> None:
    left(config(), exit_code=exit_code, steps=(20, 40))
    found = resumed(config(), resume=resume)
    assert (found.start.step, found.changed) == (40, "")
    assert found.text(100) == "goes on after step 40 of 100 from runs/x/checkpoints/step-40"


def logged(run: Path, **ended: object) -> None:
    """What rank 0 of a run of one step has written."""
    events = EventLog(run, 0)
    events.write("step", step=1, loss=5.0, grad_norm=1.0)
    if ended:
        events.write("run_ended", **ended)
    events.close()


def test_run_that_was_killed_before_its_first_checkpoint_starts_again_with_resume() -> None:
    logged(left(config()))
    assert resumed(config()).text(100) == "starts at its first step: no checkpoint in runs/x/checkpoints"
    told = refusal(config())
    assert "error[R106]" in told
    assert "fix: give --resume to start it again in its folder, or give another --name" in told


def test_checkpoint_whose_manifest_is_torn_is_named_where_no_other_is_there() -> None:
    run = left(config(), exit_code=1, steps=(20,))
    logged(run)
    (run / "checkpoints" / "step-20" / "manifest.json").write_text("{", "utf-8")
    assert "warning[D620]: step-20 of runs/x/checkpoints was never saved to its end" in refusal(config())


def test_launcher_of_another_host_says_when_it_counts_as_dead() -> None:
    replace(DEAD, host="elsewhere").write(left(config()))
    assert "if that host is dead, launch again once the run has shown no sign for 60 s" in refusal(config())


def test_run_whose_logs_and_events_were_deleted_goes_on_from_its_checkpoint() -> None:
    run = left(config(), exit_code=1, steps=(20,))
    (run / "logs").rmdir()
    (run / "events").rmdir()
    place = choose(config(), resume=False, overwrite=False, now_s=0.0)
    assert isinstance(place, Place)
    create(place, config(), plan(config().config), "command")
    assert {"logs", "events"} <= {entry.name for entry in run.iterdir()}


@pytest.mark.parametrize("saves", ["true", "false"])
@pytest.mark.parametrize("exit_code", [None, 1, 2, 130, 143])
def test_launch_that_came_to_no_step_is_launched_again_by_the_same_line(exit_code: int | None, saves: str) -> None:
    left(config(checkpoint__enable=saves), exit_code=exit_code)
    told = resumed(config(checkpoint__enable=saves), resume=False).text(100)
    assert told == "starts at its first step: no checkpoint in runs/x/checkpoints"


def test_c51_another_config_goes_on_only_where_that_is_asked_for() -> None:
    left(config(), exit_code=0, steps=(100,))
    longer = config(training__steps="200")
    told = refusal(longer)
    assert "training.steps is 100 there and 200 here" in told
    assert "or --resume to go on with this one" in told
    found = resumed(longer)
    assert found.changed == "training.steps is 100 there and 200 here"
    assert found.text(200) == "goes on after step 100 of 200 from runs/x/checkpoints/step-100"


def test_config_that_keeps_no_checkpoints_cannot_go_on() -> None:
    logged(left(config(), exit_code=1, steps=(20,)))
    told = refusal(config(checkpoint__enable="false"), resume=True)
    assert "error[R106]" in told
    assert "checkpoint.enable is false" in told


def test_run_whose_folder_was_moved_is_the_same_run() -> None:
    left(config(), exit_code=1, steps=(20,))
    Path("runs/x").rename("runs/y")
    assert resumed(config(job__name="y"), resume=False).start.step == 20


@pytest.mark.parametrize("resume", [False, True])
def test_run_with_all_its_steps_is_complete(resume: bool) -> None:
    run = left(config(), exit_code=0, steps=(100,))
    assert choose(config(), resume=resume, overwrite=False, now_s=0.0) == run


def test_complete_run_says_which_part_of_another_config_is_for_nothing() -> None:
    run = left(config(), exit_code=0, steps=(100,))
    fewer = config(training__steps="40")
    assert choose(fewer, resume=True, overwrite=False, now_s=0.0) == run
    done, in_vain = completed(fewer, run)
    assert done == "the run runs/x is complete: all 100 steps are done"
    assert in_vain == "not applied, as no step is left: training.steps is 100 there and 40 here"


def test_run_whose_data_ended_is_not_said_to_have_done_all_its_steps() -> None:
    run = left(config(), exit_code=0, steps=(1,))
    logged(run, reason="the data ended after step 1 on all data ranks", exit_code=0)
    done, _ = completed(config(), run)
    assert done == "the run runs/x is complete: it ended early, as the data ended after step 1 on all data ranks"


def test_new_config_takes_the_place_of_the_old_one_which_is_kept() -> None:
    run = left(config(), exit_code=1, steps=(20,))
    old = (run / "config.toml").read_text("utf-8")
    (run / "logs" / "torchrun.log").write_text("old", "utf-8")
    loaded = config(training__steps="200")
    place = choose(loaded, resume=True, overwrite=False, now_s=0.0)
    assert isinstance(place, Place)
    create(place, loaded, plan(loaded.config), "new command")
    assert (run / "config-1.toml").read_text("utf-8") == old
    assert load(run / "config.toml", environ={}).config.training.steps == 200
    assert (run / "command.txt").read_text("utf-8") == "new command\n"
    assert (run / "logs" / "earlier-1" / "torchrun.log").read_text("utf-8") == "old"
    assert (run / "checkpoints" / "step-20" / "manifest.json").is_file()


def test_batch_that_memory_has_called_for_is_kept_by_the_same_config_alone() -> None:
    run = left(config(), exit_code=1, steps=(20,))
    batch = {"training.local_batch_size": 4, "training.global_batch_size": 16}
    write_settled(run, batch)
    assert resumed(config(training__steps="200")).settled == {}
    place = choose(config(), resume=False, overwrite=False, now_s=0.0)
    assert isinstance(place, Place)
    assert place.resumed is not None
    assert place.resumed.settled == batch
    create(place, config(), plan(config().config), "command")
    assert read_settled(run) == batch


def test_failure_of_an_earlier_launch_does_not_fail_one_that_begins() -> None:
    run, mine = left(config(), exit_code=1), Launcher.this_process()
    failure = {"rank": 1, "host": "n", "type": "ValueError", "message": "boom"}
    ended = {"v": 1, "time": mine.created - 9, "rank": 1, "kind": "run_ended", "reason": "boom", "exit_code": 1}
    event_file(run, 1).write_text(json.dumps(ended | {"first_failure": failure}) + "\n", "utf-8")
    seen = Follower(run).read()
    assert judge(seen, Launcher.read(run)) == "failed"
    assert judge(seen, mine) == "starting"
