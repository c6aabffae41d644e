"""What a launch on this machine looks at before it starts, and how it goes on with an earlier one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.manifest import manifest_of
from engine.errors import TitanError
from engine.events import event_file, read_new
from engine.planner.plan import plan
from engine.settled import with_settled
from engine.sources import Flag, Loaded, load
from titancli.launch.local import look_at_checkpoints
from titancli.launch.run_folder import Place, create
from titancli.monitor.follow import Launcher
from titancli.report import say_findings

RUN = (
    *("launch", "--preset", "quickstart", "--training.steps", "4", "--lr_scheduler.warmup_steps", "1", "--name", "x"),
    *("--metrics.log_freq", "1", "--checkpoint.enable", "--checkpoint.interval", "2"),
)
# A worker that ends a second after another launcher has taken its run.
UNTIL_TAKEN = """\
import pathlib, sys, time
file = pathlib.Path(sys.argv[-1], "launcher.json")
before = file.stat().st_ino
while not file.exists() or file.stat().st_ino == before:
    time.sleep(0.05)
time.sleep(1)
"""
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    keys = {"job.name": "x", "checkpoint.enable": "true", "job.dump_folder": str(tmp_path)}
    return load(preset="quickstart", environ={}, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()])


def save(folder: Path, loaded: Loaded, *, step: int) -> None:
    """The checkpoint of a step, without tensors."""
    config = loaded.config
    manifest = manifest_of(config, plan(config), step=step, samples=step, updates=step, data={}, versions={})
    (folder / f"step-{step}").mkdir(parents=True)
    (folder / f"step-{step}" / "manifest.json").write_text(json.dumps(manifest.to_json()), "utf-8")


def test_disk_without_room_for_the_checkpoints_is_an_error_before_anything_starts(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(TitanError, match=r"error.M520.*1 kB free") as caught:
        look_at_checkpoints(loaded, plan(loaded.config), Place(run=tmp_path / "x"))
    assert caught.value.exit_code == 3


def test_checkpoints_of_a_run_that_is_moved_aside_take_room_and_are_not_the_new_ones(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x" / "checkpoints" / "step-100").mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(TitanError) as caught:
        look_at_checkpoints(loaded, plan(loaded.config), Place(run=tmp_path / "x", taken=True))
    assert "of them there already" not in str(caught.value)


@pytest.mark.parametrize(("taken", "severity"), [(False, "warning"), (True, "error")])
def test_checkpoints_outside_of_a_new_runs_folder_are_told_and_are_not_overwritten(
    loaded: Loaded, taken: bool, severity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder := tmp_path / "elsewhere", loaded, step=4)
    outside = with_settled(loaded, {"checkpoint.folder": str(folder)})
    try:
        look_at_checkpoints(outside, plan(loaded.config), Place(run=tmp_path / "x", taken=taken))
    except TitanError as mistake:
        say_findings(mistake.findings)
    assert f"{severity}[R108]: " in capsys.readouterr().err


@pytest.mark.world
def test_c51_launch_goes_on_after_the_processes_of_a_dead_one_are_gone(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    first = titan(*RUN[:4], "2", *RUN[5:])
    run = tmp_path / "runs" / "x"
    assert first.code == 0, first.err
    refused = titan(*RUN)
    assert (refused.code, "training.steps is 2 there and 4 here" in refused.err) == (2, True)
    dead = Launcher(pid=2**22 + 1, host=Launcher.this_process().host, created=1.0)
    dead.write(run)
    last = subprocess.Popen((sys.executable, "-c", UNTIL_TAKEN, "-m", "engine", str(run)))
    ran = titan(*RUN, "--resume")
    assert last.poll() is not None
    assert (ran.code, ran.err.splitlines()[0][:14]) == (0, "warning[D634]:")
    lines = ran.out.splitlines()
    assert lines[0] == f"waiting for the processes of the last launch to end: {last.pid}"
    assert lines[1] == "other than at its last launch: training.steps is 2 there and 4 here"
    assert lines[6] == "  goes on after step 2 of 4 from runs/x/checkpoints/step-2"
    events, _ = read_new(event_file(run, 0))
    assert [event["step"] for event in events if event["kind"] == "step"] == [1, 2, 3, 4]
    assert (run / "config-1.toml").is_file()
    again = titan(*RUN)
    assert again.out == "the run runs/x is complete: all 4 steps are done\n"


def test_lease_of_a_launch_that_waits_in_vain_leaves_what_was_said_of_the_last(
    titan: Callable[..., Any], tmp_path: Path
) -> None:
    words = {"checkpoint.enable": "true", "job.name": "x"}
    flags = [Flag(key, value, f"--{key}") for key, value in words.items()]
    made, run = load(preset="quickstart", environ={}, flags=flags), tmp_path / "runs" / "x"
    create(Place(run=run), made, plan(made.config), "command")
    ended = Launcher(pid=2**22 + 1, host=Launcher.this_process().host, created=1.0, exit_code=130)
    ended.write(run)
    last = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)", "-m", "engine", str(run)))
    try:
        ran = titan("launch", "--preset", "quickstart", "--checkpoint.enable", "--name", "x", "--resume")
    finally:
        last.kill()
        last.wait()
    assert (ran.code, "error[R121]" in ran.err, str(last.pid) in ran.err) == (2, True, True)
    assert Launcher.read(run) == ended
