"""Whose a run folder is, and when a launcher counts as dead."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import TitanError
from titancli.launch.lease import processes_of, take, wait_for_the_last
from titancli.monitor.follow import LAUNCHER_FILE, Launcher
from titancli.monitor.signs import HELD_FOR_S, LEASE_FILE, is_held, silence_s

DEAD = Launcher(pid=2**22 + 1, host="elsewhere", created=1.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "events").mkdir()
    return tmp_path


@pytest.fixture
def worker(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command reads like that of a worker of the run."""
    words = (sys.executable, "-c", "import time; time.sleep(60)", "-m", "engine", str(run))
    process = subprocess.Popen(words)
    yield process
    process.kill()
    process.wait()


def grow_old(run: Path, seconds: float) -> None:
    """Every sign of life gets so old."""
    then = time.time() - seconds
    for path in (run / LEASE_FILE, run / LAUNCHER_FILE):
        if path.exists():
            os.utime(path, (then, then))


def test_second_launch_of_this_machine_is_refused(run: Path) -> None:
    first = take(run, None)
    with pytest.raises(TitanError, match=r"error.R104.*another launch has just taken"):
        take(run, Launcher.read(run))
    first.close()
    take(run, Launcher.read(run)).close()


def test_lock_goes_with_a_process_that_is_killed(run: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom titancli.launch.lease import take\n"
        "lease = take(Path(sys.argv[1]), None)\nprint('held', flush=True)\ntime.sleep(60)\n"
    )
    holder = subprocess.Popen((sys.executable, "-c", script, str(run)), stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    seen = Launcher.read(run)
    assert is_held(run, seen)
    holder.kill()
    holder.communicate()
    assert not is_held(run, seen)
    take(run, seen).close()


def test_one_of_two_takes_a_dead_launchers_run_where_nothing_locks(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    DEAD.write(run)
    faster = replace(DEAD, pid=17)
    faster.write(run)
    with pytest.raises(TitanError, match="R104"):
        take(run, DEAD)
    assert Launcher.read(run) == faster
    take(run, faster).close()
    assert Launcher.read(run) == Launcher.this_process()


def test_launcher_of_another_host_lives_as_long_as_its_lease_is_fresh(run: Path) -> None:
    DEAD.write(run)
    (run / LEASE_FILE).touch()
    assert is_held(run, DEAD)
    grow_old(run, HELD_FOR_S + 5)
    assert not is_held(run, DEAD)


def test_time_ahead_of_the_clock_is_no_sign_of_life(run: Path) -> None:
    DEAD.write(run)
    (run / LEASE_FILE).touch()
    grow_old(run, -2 * HELD_FOR_S)
    assert not is_held(run, DEAD)


def test_rank_that_still_writes_keeps_the_run(run: Path) -> None:
    DEAD.write(run)
    grow_old(run, HELD_FOR_S + 5)
    (run / "events" / "rank-00003.jsonl").touch()
    assert is_held(run, DEAD)


def test_same_name_in_another_container_is_judged_by_its_lease(run: Path) -> None:
    other = replace(Launcher.this_process(), namespace="pid:[1]")
    other.write(run)
    assert is_held(run, other)
    grow_old(run, HELD_FOR_S + 5)
    assert not is_held(run, other)


def test_age_is_told_by_the_clock_of_the_file_system(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / LEASE_FILE).touch()
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert silence_s(run) < HELD_FOR_S


def test_kept_lease_stays_fresh(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titancli.launch.lease.TOUCHED_EVERY_S", 0.01)
    lease = take(run, None)
    grow_old(run, 1000)
    with lease.kept():
        deadline = time.monotonic() + 10
        while silence_s(run) > 100:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    lease.close()


def test_processes_of_a_dead_launcher_are_waited_for(run: Path, worker: subprocess.Popen[bytes]) -> None:
    while processes_of(run) != [worker.pid]:
        time.sleep(0.01)
    with pytest.raises(TitanError, match=rf"error.R121.* have not ended: {worker.pid}\n  fix: end them with kill -9"):
        wait_for_the_last(run, patience_s=0.1)
    worker.kill()
    wait_for_the_last(run, patience_s=20)
    assert processes_of(run) == []


def test_processes_of_another_run_are_not_its_own(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert worker.pid not in processes_of(other)
