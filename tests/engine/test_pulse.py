"""Runs that stand still, end with the rank that is to blame, and leave no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import tiny

from engine.events import event_file, read_new
from engine.first_failure import FirstFailure
from engine.pulse import Pulse
from engine.sources import to_toml

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "world" / "planted"
STUCK_AFTER_S = 3

Ranks = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """Starts two ranks as srun would, each of which may have a fault planted; they are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*faults: dict[str, Any], **values: Any) -> list[subprocess.Popen[str]]:
        values = {"training__steps": 2000, "comm__train_timeout_seconds": STUCK_AFTER_S} | values
        (tmp_path / "config.toml").write_text(to_toml(tiny(2, **values)))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            "PYTHONPATH": os.pathsep.join((str(PLANTED), str(ROOT))),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "FAULT": json.dumps(faults),
        }
        for rank in range(2):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "engine", str(tmp_path)],
                    env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(run: Path, rank: int) -> dict[str, Any]:
    """The last event of a rank."""
    return read_new(event_file(run, rank))[0][-1]


@pytest.mark.world
def test_a_rank_that_sleeps_for_ever_is_named_with_its_line_and_all_end(ranks: Ranks, tmp_path: Path) -> None:
    # What is asked for in step 5 is the data of step 6.
    processes = ranks({"do": "sleep", "rank": 1, "at": "batches", "step": 6})
    logs = [process.communicate(timeout=90)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    first = ended(tmp_path, 0)["first_failure"]
    assert first == ended(tmp_path, 1)["first_failure"]
    assert (first["rank"], first["type"]) == (1, "StuckRank")
    head = first["message"].splitlines()[0]
    assert f"(comm.train_timeout_seconds = {STUCK_AFTER_S}) in step 5, reading data, at " in head
    assert head.endswith("in strike: time.sleep(3600)")
    assert all("stacks of all its threads:" in log for log in logs)
    assert all(f"StuckRank: {head}\n" in log for log in logs)


@pytest.mark.world
def test_a_rank_whose_checkpoint_hangs_beside_training_is_named_with_its_line(ranks: Ranks, tmp_path: Path) -> None:
    processes = ranks(
        {"do": "sleep", "rank": 1, "at": "write", "step": 0},
        checkpoint__enable=True,
        checkpoint__interval=5,
        checkpoint__async_mode="async",
        comm__save_timeout_seconds=STUCK_AFTER_S,
        comm__train_timeout_seconds=100,
    )
    assert [process.wait(timeout=90) for process in processes] == [1, 1]
    first = ended(tmp_path, 0)["first_failure"]
    assert (first, first["rank"], first["type"]) == (ended(tmp_path, 1)["first_failure"], 1, "StuckRank")
    head = first["message"].splitlines()[0]
    assert f"(comm.save_timeout_seconds = {STUCK_AFTER_S}) in step 5, saving a checkpoint, at " in head
    assert head.endswith("in strike: time.sleep(3600)")


@pytest.mark.world
def test_a_rank_that_is_frozen_is_named_as_lost(ranks: Ranks, tmp_path: Path) -> None:
    watcher, _ = ranks({"do": "stop", "rank": 1, "at": "backward", "step": 40})
    assert watcher.wait(timeout=90) == 1
    first = ended(tmp_path, 0)["first_failure"]
    assert (first["rank"], first["host"], first["type"]) == (1, socket.gethostname(), "LostRank")
    assert first["message"].startswith("rank 1 on host ")


@pytest.mark.world
def test_a_rank_that_cannot_reach_the_store_ends_by_itself_and_names_the_head(ranks: Ranks, tmp_path: Path) -> None:
    # Rank 0 serves the store here, as under srun.
    _, left = ranks({"do": "stop", "rank": 0, "at": "backward", "step": 40})
    assert left.wait(timeout=90) == 1
    first = ended(tmp_path, 1)["first_failure"]
    assert (first["rank"], first["type"]) == (0, "LostRank")
    assert first["message"].startswith("the head node 127.0.0.1 has been silent for ")


@pytest.mark.world
def test_c41_a_peer_of_a_rank_that_raised_names_that_rank_and_not_its_own_collective(
    ranks: Ranks, tmp_path: Path
) -> None:
    processes = ranks({"do": "raise", "rank": 1, "at": "backward", "step": 40})
    assert [process.wait(timeout=90) for process in processes] == [1, 1]
    failures = [ended(tmp_path, rank)["first_failure"] for rank in range(2)]
    assert failures[0] == failures[1]
    assert (failures[0]["rank"], failures[0]["type"], failures[0]["message"]) == (1, "ValueError", "boom-17")


@pytest.mark.world
def test_c42_a_termination_of_one_rank_has_all_save_the_same_step(ranks: Ranks, tmp_path: Path) -> None:
    processes = ranks(
        {"do": "terminate", "rank": 0, "at": "backward", "step": 7},
        {"do": "terminate", "rank": 0, "at": "backward", "step": 7},
        checkpoint__enable=True,
        checkpoint__interval=1000,
    )
    logs = [process.communicate(timeout=90)[1] for process in processes]
    assert ([process.returncode for process in processes], logs) == ([143, 143], ["", ""])
    ends = [ended(tmp_path, rank) for rank in range(2)]
    assert [(end["exit_code"], end["reason"]) for end in ends] == [(143, ends[0]["reason"])] * 2
    saved = [event["step"] for event in read_new(event_file(tmp_path, 0))[0] if event.get("state") == "committed"]
    assert [ends[0]["reason"]] == [f"stopped by a signal after step {step}" for step in saved]


ALONE = """
import time
from engine.pulse import Pulse
pulse = Pulse(deadline_s=0.3, limit="a limit")
with pulse.beating(lambda verdict: print(verdict.type, verdict.rank, flush=True)):
    pulse.at("data", 3)
    {rest}
"""


def test_a_process_alone_judges_itself() -> None:
    code = ALONE.format(rest="time.sleep(60)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "StuckRank 0\n")
    assert "rank 0 on host" in done.stderr
    assert "in step 3, reading data, at <string>:7 in <module>" in done.stderr


BESIDE = """import threading
    def stuck():
        with pulse.beside("save", 2, 0.3, "another"):
            time.sleep(60)
    threading.Thread(target=stuck, daemon=True).start()
    while True:
        pulse.at("data", 3)
        time.sleep(0.01)
"""


def test_a_thread_beside_one_that_goes_on_is_watched_too() -> None:
    code = ALONE.format(rest=BESIDE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "StuckRank 0\n")
    assert "(another) in step 2, saving a checkpoint, at <string>:10 in stuck" in done.stderr


def test_work_beside_training_that_ended_in_time_is_forgotten() -> None:
    pulse = Pulse(deadline_s=0.3, limit="a limit")
    verdicts: list[FirstFailure] = []
    with pulse.beating(verdicts.append):
        with pulse.beside("save", 2, 0.3, "another"):
            time.sleep(0.1)
        assert pulse.place_beside is None
        for _ in range(60):
            pulse.at("data", 3)
            time.sleep(0.01)
    assert verdicts == []


def test_what_goes_on_is_left_alone_and_no_thread_remains() -> None:
    before = threading.active_count()
    verdicts: list[FirstFailure] = []
    pulse = Pulse(deadline_s=0.3, limit="a limit")
    with pulse.beating(verdicts.append):
        end_s = time.monotonic() + 0.6
        while time.monotonic() < end_s:
            pulse.at("data")
            time.sleep(0.01)
    assert (verdicts, threading.active_count()) == ([], before)


def test_another_time_may_be_taken_within_a_block_only() -> None:
    pulse = Pulse(deadline_s=3.0, limit="a limit")
    pulse.at("report", 4)
    with pulse.within("save", 1800.0, "another"):
        assert pulse.place == ("save", 4, 1800.0, "another")
    assert pulse.place == ("save", 4, 3.0, "a limit")


HOLDS = """
import ctypes, os, socket
import engine.pulse
from torch.distributed import TCPStore
engine.pulse._OWN_END_S = 0.2
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
with engine.pulse.Pulse(world_size=2, deadline_s=0.6, limit="a limit").beating(print):
    import time; time.sleep(0.3)
    ctypes.PyDLL(None).sleep(60)  # without letting other threads run
"""


def test_a_main_thread_that_keeps_the_interpreter_for_ever_ends_with_its_stack() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert 'File "<string>", line 10 in <module>' in done.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="processes cannot be stopped here")
def test_a_process_that_was_stopped_as_a_whole_goes_on() -> None:
    code = ALONE.format(rest="import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('goes on', flush=True)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T":
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0] == "goes on\n"
    assert process.returncode == 0
