"""A run that goes on without its terminal: real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_until

from titancli.launch.lease import processes_of
from titancli.monitor.follow import Follower, Launcher, judge

pytestmark = pytest.mark.world
LONG = ("launch", "--preset", "quickstart", "--training.steps", "100000", "--name", "x", "--detach")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs" / "x"
    yield folder
    launcher = Launcher.read(folder)
    if launcher is not None and launcher.is_alive:
        os.kill(launcher.pid, signal.SIGKILL)
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


def test_detached_run_goes_on_in_a_session_of_its_own_until_it_is_ended(titan: Callable[..., Any], run: Path) -> None:
    ran = titan(*LONG)
    launcher = Launcher.read(run)
    assert launcher is not None
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[-3] == f"x goes on in the background: process {launcher.pid}"
    assert lines[-2:] == ["  watch it  titan monitor x; titan logs x --follow", f"  end it    kill {launcher.pid}"]
    assert (os.getsid(launcher.pid), psutil.Process(launcher.pid).terminal()) == (launcher.pid, None)
    assert judge(Follower(run).read(), launcher) == "running"
    again = titan(*LONG)
    assert (again.code, f"process {launcher.pid}" in again.err) == (2, True)
    os.kill(launcher.pid, signal.SIGHUP)
    wait_until(lambda: (told := Launcher.read(run)) is not None and told.exit_code is not None)
    assert judge(Follower(run).read(), Launcher.read(run)) == "interrupted"
    assert processes_of(run) == []
    assert "stopped by a signal: " in (run / "logs" / "launch.log").read_text("utf-8")


def test_run_that_dies_before_it_is_built_is_told_at_once(titan: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    # The engine's own interpreter start: every worker of the run ends as if its machine had no torch.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif sys.orig_argv[1:4] == ['-u', '-m', 'engine']:\n    sys.exit('no torch')\n",
        "utf-8",
    )
    ran = titan(*LONG, PYTHONPATH=os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("  fix: ") or "error[R20" in ran.err
    assert "goes on in the background" not in ran.out
    told = Launcher.read(run)
    assert told is not None
    assert told.exit_code == 1
