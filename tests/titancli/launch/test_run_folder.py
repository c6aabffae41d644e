"""Who may have a run folder, and what is written into it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.events import EventLog
from engine.planner.plan import plan
from engine.sources import Flag, Loaded, load
from titancli.launch.run_folder import Place, alone_in, choose, create
from titancli.launch.taken import differences
from titancli.monitor.follow import Launcher

NOON_S = 1_796_040_000.0


def config(**flags: str) -> Loaded:
    keys = {name.replace("__", "."): value for name, value in flags.items()}
    return load(preset="quickstart", environ={}, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def start(loaded: Loaded, *, overwrite: bool = False) -> Path:
    """A run folder as launch leaves it after its first moments, with its launcher gone."""
    place = choose(loaded, resume=False, overwrite=overwrite, now_s=NOON_S)
    assert isinstance(place, Place)
    create(place, loaded, plan(loaded.config), "command")
    host = Launcher.this_process().host
    Launcher(pid=os.getpid(), host=host, created=1.0, exit_code=1).write(place.run)
    return place.run


def end(run: Path, exit_code: int) -> None:
    host = Launcher.this_process().host
    Launcher(pid=os.getpid(), host=host, created=1.0, exit_code=exit_code).write(run)


def refusal(loaded: Loaded, *, resume: bool = False, overwrite: bool = False) -> str:
    with pytest.raises(TitanError) as caught:
        choose(loaded, resume=resume, overwrite=overwrite, now_s=NOON_S)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_empty_name_is_the_stem_and_the_time_and_never_meets_another() -> None:
    runs = [start(config()) for _ in range(3)]
    stamp = runs[0].name.removeprefix("quickstart-")
    assert [run.name for run in runs] == [f"quickstart-{stamp}{count}" for count in ("", "-2", "-3")]
    assert len(stamp) == len("20261130-120000")


def test_folder_holds_what_the_workers_and_the_monitor_read() -> None:
    loaded = config(job__name="x")
    run = start(loaded)
    assert {path.name for path in run.iterdir()} == {
        "config.toml",
        "plan.json",
        "command.txt",
        "launcher.json",
        "events",
        "logs",
        "checkpoints",
    }
    assert load(run / "config.toml", environ={}).config == loaded.config
    assert json.loads((run / "plan.json").read_text("utf-8"))["world_size"] == 2


def test_c51_folder_of_another_config_is_refused_with_the_keys_that_differ() -> None:
    start(config(job__name="x"))
    told = refusal(config(job__name="x", training__steps="20"))
    assert "runs/x holds a run of another config: training.steps is 100 there and 20 here" in told
    assert "--overwrite" in told


def test_many_differences_are_cut_short() -> None:
    text = differences(load(preset="quickstart").config, load(preset="3d-405b").config)
    assert text.count(" there and ") == 5
    assert ", and " in text
    assert text.endswith(" more")


def test_c51_same_config_and_complete_is_handed_back() -> None:
    run = start(config(job__name="x"))
    end(run, 0)
    for resume in (False, True):
        assert choose(config(job__name="x"), resume=resume, overwrite=False, now_s=NOON_S) == Path("runs/x")


@pytest.mark.parametrize(("exit_code", "state"), [(1, "failed"), (130, "interrupted")])
def test_c51_same_config_that_is_not_complete_has_no_checkpoint_to_go_on_from(exit_code: int, state: str) -> None:
    run = start(config(job__name="x"))
    EventLog(run, 0).write("step", step=1, loss=5.0, grad_norm=1.0)
    end(run, exit_code)
    for resume in (False, True):
        told = refusal(config(job__name="x"), resume=resume)
        assert f"runs/x holds this run, {state} and without a checkpoint to resume from" in told


def test_c51_overwrite_moves_the_old_folder_aside_and_deletes_nothing() -> None:
    first = start(config(job__name="x"))
    (first / "precious.txt").write_text("kept", "utf-8")
    for count in (1, 2):
        loaded = config(job__name="x", training__steps=str(20 + count))
        place = choose(loaded, resume=False, overwrite=True, now_s=NOON_S)
        assert isinstance(place, Place)
        assert create(place, loaded, plan(loaded.config), "command") == f"runs/x.old-{count}"
        end(place.run, 1)
    assert Path("runs/x.old-1/precious.txt").read_text("utf-8") == "kept"


@pytest.mark.parametrize("overwrite", [False, True])
def test_run_that_is_going_on_is_never_touched(overwrite: bool) -> None:
    run = start(config(job__name="x"))
    Launcher.this_process().write(run)
    assert f"is going on (process {os.getpid()}" in refusal(config(job__name="x"), overwrite=overwrite)


def test_run_whose_launcher_was_killed_can_be_overwritten() -> None:
    run = start(config(job__name="x"))
    Launcher(pid=2**22 + 1, host=Launcher.this_process().host, created=1.0).write(run)
    EventLog(run, 0).write("run_started", world_size=2, host=Launcher.this_process().host, pid=2**22 + 2)
    assert choose(config(job__name="x"), resume=False, overwrite=True, now_s=NOON_S) == Place(run=run, taken=True)


def test_folder_that_is_no_run_is_not_taken_for_one() -> None:
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/thesis.tex").write_text("", "utf-8")
    assert "runs/x exists and is not the folder of a run" in refusal(config(job__name="x"))


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "a b", "x" * 201, "ä\n"])
def test_name_that_cannot_be_a_folder_is_refused(name: str) -> None:
    assert "error[R102]" in refusal(config(job__name=name))


def test_resume_needs_a_name_and_a_run() -> None:
    assert "error[R101]" in refusal(config(), resume=True)
    assert "there is no run x in runs to resume" in refusal(config(job__name="x"), resume=True)
    assert "error[U106]" in refusal(config(job__name="x"), resume=True, overwrite=True)


def test_folder_that_cannot_be_written_is_told_and_nothing_is_left() -> None:
    Path("file").write_text("", "utf-8")
    loaded = config(job__name="x", job__dump_folder="file/runs")
    place = choose(loaded, resume=False, overwrite=False, now_s=NOON_S)
    assert isinstance(place, Place)
    with pytest.raises(TitanError, match="cannot write the run folder file/runs/x: not a directory"):
        create(place, loaded, plan(loaded.config), "command")
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_odd_stem_still_makes_a_folder_name(tmp_path: Path) -> None:
    (tmp_path / "my run (2).toml").write_text("", "utf-8")
    loaded = load(tmp_path / "my run (2).toml", environ={})
    place = choose(loaded, resume=False, overwrite=False, now_s=NOON_S)
    assert isinstance(place, Place)
    assert place.run.name.startswith("my_run__2_-")


def test_launch_that_comes_second_is_refused_and_spoils_nothing_of_the_first() -> None:
    loaded = config(job__name="x")
    first, second = (choose(loaded, resume=False, overwrite=False, now_s=NOON_S) for _ in range(2))
    assert isinstance(first, Place)
    assert isinstance(second, Place)
    create(first, loaded, plan(loaded.config), "command")
    with pytest.raises(TitanError, match="another launch has just taken runs/x"):
        create(second, loaded, plan(loaded.config), "command")
    assert [entry.name for entry in Path("runs").iterdir()] == ["x"]
    assert (first.run / "launcher.json").is_file()


def test_only_one_launch_at_a_time_chooses_in_a_folder_of_runs() -> None:
    with alone_in(Path("runs")):
        other = os.open("runs", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_folder_of_runs_that_stays_empty_is_not_left_behind() -> None:
    with alone_in(Path("a/b/runs")):
        assert Path("a/b/runs").is_dir()
    assert not Path("a").exists()


def test_folder_of_runs_that_cannot_be_made_is_told() -> None:
    Path("file").write_text("", "utf-8")
    with pytest.raises(TitanError, match=r"error.R107.*not a directory"), alone_in(Path("file/runs")):
        pass


def test_leftover_of_a_killed_launch_is_no_hindrance() -> None:
    Path("runs/.x.partial").mkdir(parents=True)
    Path("runs/.x.0a1b2c3d.partial/events").mkdir(parents=True)
    assert start(config(job__name="x")).is_dir()


def test_home_folder_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert start(config(job__name="x", job__dump_folder="~/runs")) == tmp_path / "runs" / "x"


@pytest.mark.parametrize("folder", ["x" * 300, "a/" * 3000], ids=["name", "path"])
def test_folder_of_runs_with_too_long_a_name_is_told(folder: str) -> None:
    loaded = config(job__name="x", job__dump_folder=folder)
    place = choose(loaded, resume=False, overwrite=False, now_s=NOON_S)
    assert isinstance(place, Place)
    with pytest.raises(TitanError, match=r"error.R107.*file name too long"), alone_in(place.run.parent):
        pass


def test_link_to_nothing_is_not_taken_for_a_free_place() -> None:
    Path("runs").mkdir()
    Path("runs/x").symlink_to("nowhere")
    assert "runs/x exists and is not the folder of a run" in refusal(config(job__name="x"))


def test_run_whose_config_cannot_be_read_is_not_called_another_config() -> None:
    run = start(config(job__name="x"))
    (run / "config.toml").write_text("garbage", "utf-8")
    assert "runs/x holds a run whose config.toml cannot be read" in refusal(config(job__name="x"))
