"""`titan monitor` from outside, on a real run and on broken ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect
import pytest

import titancli.monitor
from engine.events import EventLog
from titancli.monitor.fold import fold
from titancli.monitor.follow import Launcher
from titancli.monitor.frame import Frame, frame
from titancli.monitor.run_state import RunState
from titancli.monitor.screen.panels_ink import cells


def write_run(folder: Path, *, exit_code: int | None = None) -> Path:
    run = folder / "runs" / "x"
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text("[training]\nsteps = 10\n", "utf-8")
    host = Launcher.this_process()
    Launcher(pid=host.pid, host=host.host, created=host.created, exit_code=exit_code).write(run)
    return run


def step(run: Path, number: int, loss: float) -> None:
    EventLog(run, 0).write("step", step=number, loss=loss, step_s=1.0, tokens_per_s_per_gpu=10.0)


def test_json_of_a_finished_run_is_one_object(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    run, _ = finished_run
    ran = titan("monitor", "--json", cwd=run.parents[1])
    told = json.loads(ran.out)
    assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
    assert (told["run"], told["state"], told["step"], told["steps"]) == ("done", "finished", 6, 6)
    assert 0 < told["loss"] < 6
    assert [row["rank"] for row in told["ranks"]] == [0, 1]
    assert all(row["used_bytes"] > 1 << 20 for row in told["ranks"])
    assert {row["sm_pct"] for row in told["ranks"]} | {told["mfu_pct"]} == {None}


@pytest.mark.parametrize("words", [("monitor", "done", "--once"), ("monitor", "runs/done", "--once")])
def test_once_draws_one_frame(
    titan: Callable[..., Any], finished_run: tuple[Path, Any], words: tuple[str, ...]
) -> None:
    ran = titan(*words, cwd=finished_run[0].parents[1])
    assert (ran.code, ran.err) == (0, "")
    assert "done · finished" in ran.out
    assert "6 of 6" in ran.out
    assert "\x1b" not in ran.out
    assert {(cells(line), line[-1]) for line in ran.out.splitlines()} == {(100, end) for end in "╮│╯"}


def test_plain_lines_end_with_the_run(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    ran = titan("monitor", cwd=finished_run[0].parents[1])
    assert ran.code == 0
    assert ran.out.startswith("finished  step 6 of 6  loss ")
    assert "left" not in ran.out.splitlines()[0]
    assert [line for line in ran.out.splitlines()[1:] if not line.startswith("alert: ")] == []


class Looks:
    """Looks at a run, one after another."""

    def __init__(self, *looks: Frame) -> None:
        self._left = list(looks)

    @property
    def is_over(self) -> bool:
        return not self._left

    def look(self) -> Frame:
        return self._left.pop(0)


def test_plain_lines_tell_an_alert_once_whatever_its_figures_come_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_full(*reserved: int) -> Frame:
        events = [
            {"rank": rank, "time": 1.0, "kind": "memory", "reserved_bytes": each} for rank, each in enumerate(reserved)
        ]
        plan = {"world_size": 2, "gpu": "h200", "stages": [{"memory": {"capacity_bytes": 100, "peak_bytes": 60}}]}
        seen = fold(RunState(), events)
        return frame("x", seen, "running", failure=None, config={}, plan=plan, now=2.0)

    monkeypatch.setattr(titancli.monitor, "REFRESH_S", 0.0)
    looks = Looks(nearly_full(96), nearly_full(97), nearly_full(97, 98), nearly_full(50, 99))
    titancli.monitor._say_lines(looks)  # type: ignore[arg-type]
    told = [line.partition(" of ")[0] for line in capsys.readouterr().out.splitlines() if "alert: W210" in line]
    assert told == ["alert: W210: rank 0 uses 96 B", "alert: W210: ranks 0-1 use up to 98 B"]


@pytest.mark.parametrize("words", [("monitor",), ("monitor", "nothing"), ("logs",), ("logs", "nothing")])
def test_run_that_is_not_there_is_exit_2(titan: Callable[..., Any], words: tuple[str, ...]) -> None:
    ran = titan(*words, *(("--json",) if words[0] == "monitor" else ()))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[U110]: there is no run ")


def test_run_folder_with_broken_files_is_still_shown(titan: Callable[..., Any], tmp_path: Path) -> None:
    run = write_run(tmp_path, exit_code=1)
    (run / "config.toml").write_text("not = [toml", "utf-8")
    (run / "plan.json").write_text('{"stages": [', "utf-8")
    (run / "events" / "rank-00003.jsonl").write_bytes(b'\xff\xfe garbage\n{"kind": "memory", "rank": 3}\n{"kind')
    (run / "events" / "rank-00004.jsonl").mkdir()
    ran = titan("monitor", "--once", "--json")
    told = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (told["state"], told["steps"], [row["rank"] for row in told["ranks"]]) == ("failed", None, [3])
    assert titan("monitor", "--once").code == 0


def test_json_lines_follow_a_run_to_its_end(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    run = write_run(tmp_path)
    watcher = subprocess.Popen([*titan_command, "monitor", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    first = json.loads(watcher.stdout.readline())
    step(run, 3, 2.5)
    later = json.loads(watcher.stdout.readline())
    own = Launcher.this_process()
    Launcher(pid=own.pid, host=own.host, created=own.created, exit_code=0).write(run)
    rest = [json.loads(line) for line in watcher.stdout.read().splitlines()]
    assert watcher.wait(timeout=30) == 0
    watcher.stdout.close()
    assert [first["state"], later["state"], rest[-1]["state"]] == ["starting", "running", "finished"]
    assert (first["step"], later["step"], later["loss"]) == (None, 3, 2.5)


def test_live_panels_move_in_a_terminal_and_ctrl_c_ends_only_the_watching(
    titan_command: tuple[str, ...], tmp_path: Path
) -> None:
    run = write_run(tmp_path)
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    terminal = pexpect.spawn(
        titan_command[0],
        [*titan_command[1:], "monitor"],
        cwd=str(tmp_path),
        env=environ | {"TERM": "xterm-256color"},
        dimensions=(30, 60),
        encoding="utf-8",
        timeout=20,
    )
    terminal.expect("x · starting")
    step(run, 7, 1.25)
    terminal.expect("7 of 10")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130


def test_interrupted_watching_leaves_no_traceback(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    write_run(tmp_path)
    watcher = subprocess.Popen(
        [*titan_command, "monitor"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    watcher.stdout.readline()
    time.sleep(0.1)
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=20)
    assert (watcher.returncode, err) == (130, "")


def test_a_run_whose_machine_is_gone_is_shown_as_dead(titan: Callable[..., Any], tmp_path: Path) -> None:
    run = write_run(tmp_path)
    replace(Launcher.this_process(), host="far", namespace=None).write(run)
    step(run, 3, 2.0)
    assert titan("monitor", "x", "--once", cwd=tmp_path).out.count("x · running") == 1
    for path in (run / "launcher.json", run / "events" / "rank-00000.jsonl"):
        os.utime(path, (1.0, 1.0))
    assert titan("monitor", "x", cwd=tmp_path).out.startswith("dead  step 3 of 10")
