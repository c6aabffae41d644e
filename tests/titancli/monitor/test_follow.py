"""Finding a run, reading it while it grows, judging whether it lives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.errors import TitanError
from engine.events import EventLog, event_file
from titancli.monitor.follow import Follower, Launcher, find_run, is_over, judge, newest_run

HERE = socket.gethostname()
NOBODY = 2**22 + 7  # above the largest pid of Linux


def make_run(runs: Path, name: str, age_s: float = 0.0) -> Path:
    run = runs / name
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text("[training]\nsteps = 10\n", "utf-8")
    os.utime(run / "config.toml", (1e9 - age_s, 1e9 - age_s))
    return run


def launcher(pid: int = NOBODY, host: str = HERE, exit_code: int | None = None, created: float = 1.0) -> Launcher:
    return Launcher(pid=pid, host=host, created=created, exit_code=exit_code)


def test_run_is_found_by_name_by_folder_and_as_the_newest(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, "old", age_s=50), make_run(tmp_path, "new")
    assert find_run("old", str(tmp_path)) == old
    assert find_run(str(old), "elsewhere") == old
    assert find_run(None, str(tmp_path)) == new


def test_folder_that_is_being_written_is_not_the_newest(tmp_path: Path) -> None:
    whole = make_run(tmp_path, "whole", age_s=50)
    make_run(tmp_path, ".half.partial")
    (tmp_path / "notes").mkdir()
    assert newest_run(tmp_path) == whole


@pytest.mark.parametrize(("name", "part"), [("nwe", "name one of new$"), (None, "titan launch --preset quickstart")])
def test_run_that_is_not_there_is_a_finding_with_a_way_out(tmp_path: Path, name: str | None, part: str) -> None:
    if name is not None:
        make_run(tmp_path, "new", age_s=50)
        make_run(tmp_path, "something-else")
    with pytest.raises(TitanError, match=part) as caught:
        find_run(name, str(tmp_path))
    assert caught.value.exit_code == 2


def test_follower_reads_only_whole_lines_and_goes_on_where_it_was(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    follower = Follower(run)
    assert follower.read().step is None
    path = event_file(run, 0)
    path.write_bytes(b'{"kind": "step", "rank": 0, "step": 1, "loss": 2.0}\n{"kind": "step", "ra')
    assert follower.read().step == 1
    with path.open("ab") as file:
        file.write(b'nk": 0, "step": 2, "loss": 1.0}\nnot json\n[1]\n{"kind": "step", "rank": 0, "step": 3}\n')
    assert follower.read().step == 3
    assert follower.state.losses == (2.0, 1.0)


def test_512_ranks_are_all_read(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    for rank in range(512):
        log = EventLog(run, rank)
        for _ in range(20):
            log.write("memory", active_bytes=1, reserved_bytes=rank)
        log.close()
    follower = Follower(run)
    assert len(follower.read().ranks) == 512


def test_launcher_reads_back_what_it_wrote(tmp_path: Path) -> None:
    written = launcher(exit_code=130)
    written.write(tmp_path)
    assert Launcher.read(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_launcher_file_that_is_broken_is_no_launcher(tmp_path: Path, text: str) -> None:
    (tmp_path / "launcher.json").write_text(text, "utf-8")
    assert Launcher.read(tmp_path) is None


def test_pid_that_was_given_to_another_process_is_not_the_launcher() -> None:
    created = psutil.Process().create_time()
    assert launcher(pid=os.getpid(), created=created).is_alive is True
    assert launcher(pid=os.getpid(), created=created - 500).is_alive is False


def test_process_that_nobody_collected_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    created = psutil.Process(child.pid).create_time()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert launcher(pid=child.pid, created=created).is_alive is False
    child.wait()


def state_of(run: Path, said_by: Launcher | None) -> str:
    return judge(Follower(run).read(), said_by)


@pytest.mark.parametrize(
    ("exit_code", "state"), [(0, "finished"), (1, "failed"), (2, "failed"), (130, "interrupted"), (143, "interrupted")]
)
def test_what_the_launcher_wrote_last_is_the_state(tmp_path: Path, exit_code: int, state: str) -> None:
    assert state_of(make_run(tmp_path, "x"), launcher(exit_code=exit_code)) == state


def test_run_without_a_word_is_starting_while_its_launcher_lives(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    assert state_of(run, Launcher.this_process()) == "starting"
    assert state_of(run, launcher()) == "dead"
    assert state_of(run, launcher(host="another-host")) == "starting"


@pytest.mark.parametrize(
    ("host", "pid", "state"),
    [
        pytest.param(HERE, os.getpid(), "running", id="here and there"),
        pytest.param(HERE, NOBODY, "dead", id="here and gone"),
        pytest.param("far", NOBODY, "running", id="elsewhere"),
    ],
)
def test_run_whose_processes_are_gone_is_dead_but_only_their_host_can_tell(
    tmp_path: Path, host: str, pid: int, state: str
) -> None:
    run = make_run(tmp_path, "x")
    EventLog(run, 0).write("run_started", world_size=1, host=host, pid=pid)
    assert state_of(run, None) == state


@pytest.mark.parametrize(("exit_code", "state"), [(0, "finished"), (1, "failed"), (143, "interrupted")])
def test_run_that_the_engine_ended_alone_has_the_state_of_rank_0(tmp_path: Path, exit_code: int, state: str) -> None:
    run = make_run(tmp_path, "x")
    EventLog(run, 0).write("run_ended", reason="said so", exit_code=exit_code, first_failure=None)
    assert state_of(run, None) == state


def test_run_with_a_failed_rank_has_failed_whatever_rank_0_says(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    EventLog(run, 1).write(
        "run_ended",
        reason="x",
        exit_code=1,
        first_failure={"rank": 1, "host": "a", "type": "ValueError", "message": ""},
    )
    assert state_of(run, None) == "failed"


@pytest.mark.parametrize("name", ["x" * 300, "a\nb", ""])
def test_name_that_can_be_no_folder_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(TitanError, match="there is no run"):
        find_run(name, str(tmp_path / "runs"))


def test_launcher_that_cannot_be_written_leaves_no_half_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    (run / "launcher.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        launcher().write(run)
    assert not list(run.glob(".launcher*"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", '{"pid": 1}', '{"pid": "1", "host": "a", "created": 1.0, "exit_code": null}'),
        '{"pid": 1e400, "host": "a", "created": 1.0, "exit_code": null}',
    ],
)
def test_launcher_file_of_other_content_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "launcher.json").write_text(text, "utf-8")
    assert Launcher.read(tmp_path) is None


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 10**30])
def test_number_that_can_be_no_process_is_not_alive(pid: int) -> None:
    assert launcher(pid=pid).is_alive is False


def test_long_file_of_another_rank_is_read_by_its_ends_and_rank_0_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path, "x")
    for rank in (0, 1):
        log = EventLog(run, rank)
        log.write("run_started", world_size=2, host="far", pid=5)
        for number in range(400):
            log.write("step", step=number, loss=1.0, filler="x" * 40)
            log.write("memory", active_bytes=number)
        log.close()
    state = Follower(run).read()
    assert (state.logged_steps[0], state.logged_steps[-1]) == (3, 399)
    assert [(each.host, each.active_bytes) for each in state.ranks.values()] == [("far", 399), ("far", 399)]


def test_failed_run_is_not_over_while_its_launcher_lives() -> None:
    here = Launcher.this_process()
    assert not is_over("failed", here)
    assert not is_over("running", launcher())
    for gone in (launcher(), launcher(pid=here.pid, exit_code=1), None):
        assert is_over("failed", gone)


@pytest.mark.parametrize(("holds", "state"), [(True, "running"), (None, "running"), (False, "dead")])
def test_a_launcher_of_another_machine_is_dead_once_it_shows_no_sign(
    tmp_path: Path, holds: bool | None, state: str
) -> None:
    run = make_run(tmp_path, "x")
    EventLog(run, 0).write("run_started", world_size=1, host="far", pid=5)
    assert judge(Follower(run).read(), launcher(host="far"), holds=holds) == state


def test_a_failure_is_not_the_end_while_a_launcher_of_another_machine_shows_signs(tmp_path: Path) -> None:
    run, far = make_run(tmp_path, "x"), launcher(host="far")
    failure = {"rank": 0, "host": "far", "type": "ValueError", "message": ""}
    EventLog(run, 0).write("run_ended", reason="x", exit_code=1, first_failure=failure)
    seen = Follower(run).read()
    assert (judge(seen, far, holds=True), judge(seen, far, holds=False)) == ("running", "failed")
    assert (is_over("failed", far, holds=True), is_over("failed", far, holds=False)) == (False, True)
