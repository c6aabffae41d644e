"""Real runs of two processes: shown, ended, and how each end is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
from waiting import wait_until

from engine.planner.plan import plan
from engine.sources import Flag, load
from titancli.launch.progress import Lines
from titancli.launch.run_folder import Place, create
from titancli.launch.summary import failure_text
from titancli.launch.supervise import patience_s, supervise
from titancli.launch.torchrun import command
from titancli.monitor.failure import failures_of
from titancli.monitor.fold import fold
from titancli.monitor.follow import Follower
from titancli.monitor.run_state import RunState

pytestmark = pytest.mark.world
LONG = ("launch", "--preset", "quickstart", "--training.steps", "100000", "--metrics.log_freq", "1", "--name", "x")

Started = Callable[..., subprocess.Popen[str]]


def of_run(run: Path) -> list[psutil.Process]:
    """Every living process that has this run folder in its command."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if str(run) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def data_workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that read ahead for the ranks of a launch."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [each for each in below if "engine.data.worker" in each.cmdline()]


def has_stepped(run: Path) -> bool:
    return Follower(run).read().step is not None


@pytest.fixture
def started(titan_command: tuple[str, ...], tmp_path: Path) -> Iterator[Started]:
    """Starts a long run named x and waits for its first step."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*titan_command, *LONG, *words],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        wait_until(lambda: has_stepped(tmp_path / "runs" / "x") or process.poll() is not None)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    for left in of_run(tmp_path / "runs" / "x"):
        left.kill()


def test_finished_run_ends_with_a_summary(finished_run: tuple[Path, Any]) -> None:
    _, launched = finished_run
    assert launched.code == 0, launched.err
    # A busy machine takes more than 15 s to start, and then it says so.
    lines = [line for line in launched.out.splitlines() if not line.startswith("still ")]
    assert lines[0] == "done: llama3 debugmodel on 2 processes on cpu, FSDP 2"
    assert lines[2].startswith("  stdlib: ")
    begin = lines.index("starting processes")
    assert lines[begin + 1] == "building the model"
    head, loss, speed, memory, folder, following = lines[-6:]
    assert head.startswith("done: 6 of 6 steps in ")
    assert loss.startswith("  loss         5.6")
    assert speed.endswith(" tokens/s/process (median without step 1)")
    assert "weights, gradients and optimizer by plan: 15.8 MiB" in memory
    assert folder == "  run folder   runs/done"
    assert following == "  next         titan monitor done; titan logs done"


def test_c44_variables_of_an_outer_launcher_are_said_to_be_left_out(finished_run: tuple[Path, Any]) -> None:
    _, launched = finished_run
    assert launched.err == "not handed to the workers: MASTER_ADDR, RANK, WORLD_SIZE of another launcher\n"


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "stopped by a signal"),
        (signal.SIGUSR1, 143, "stopped by a signal"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_c42_signal_ends_all_processes_with_its_code(
    started: Started, tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    process = started("--data.num_workers", "1")
    readers = data_workers(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=40)
    assert (process.returncode, err, len(readers)) == (code, "", 2)
    assert f"\n{word}: " in out
    assert of_run(tmp_path / "runs" / "x") == []
    assert not any(reader.is_running() for reader in readers)


def test_c42_killed_launcher_leaves_no_worker_and_no_data_worker(started: Started, tmp_path: Path) -> None:
    process = started("--data.num_workers", "1")
    assert len(of_run(tmp_path / "runs" / "x")) == 3
    readers = data_workers(process)
    assert len(readers) == 2
    process.kill()
    wait_until(lambda: of_run(tmp_path / "runs" / "x") == [], seconds=10)
    wait_until(lambda: not any(reader.is_running() for reader in readers), seconds=10)


def test_c41_killed_torchrun_is_named_and_nothing_is_left(started: Started, tmp_path: Path) -> None:
    process = started()
    (torchrun,) = psutil.Process(process.pid).children()
    torchrun.kill()
    _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert err.startswith("error[R204]: torchrun, the parent of all ranks, was killed by SIGKILL from outside\n")
    assert of_run(tmp_path / "runs" / "x") == []


def test_c41_killed_worker_is_the_first_failure_and_its_peer_secondary(started: Started, tmp_path: Path) -> None:
    process = started()
    run = tmp_path / "runs" / "x"
    victim = Follower(run).read().ranks[1].pid
    wait_until(lambda: 1 in Follower(run).read().ranks)
    os.kill(victim or Follower(run).read().ranks[1].pid or 0, signal.SIGKILL)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "error[R202]: rank 1 failed first: SIGKILL: " in err
    assert "attempt_0/1/stderr.log" in err
    assert "secondary: rank 0: " in err
    assert of_run(run) == []


BOOM = """\
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise ValueError("boom-17")
dist.barrier()
"""


def test_c41_worker_that_raises_is_named_with_type_text_and_log(tmp_path: Path) -> None:
    run = tmp_path / "x"
    (run / "logs").mkdir(parents=True)
    script = tmp_path / "boom.py"
    script.write_text(BOOM, "utf-8")
    torchrun = command(run, processes=2, threads=1, grace_s=30.0, environ=os.environ)
    torchrun = replace(torchrun, words=(*torchrun.words[:-3], str(script)))
    ending = supervise(torchrun, run, grace_s=30.0, display=lambda: Lines(10))
    text = failure_text(failures_of(run, ending.state), run, torchrun_tail="")
    assert (ending.exit_code, ending.seconds < 30) == (1, True)
    assert text.startswith("error[R202]: rank 1 failed first: ValueError: boom-17\n  --> ")
    assert "attempt_0/1/stderr.log\n" in text
    assert "\nsecondary: rank 0: " in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize(("kind", "seconds"), [("LostRank", 2), ("StuckRank", 2), ("ValueError", 10)])
def test_ranks_that_agreed_who_stands_still_are_not_waited_for(kind: str, seconds: float) -> None:
    first = {"rank": 1, "host": "a", "type": kind, "message": ""}
    state = fold(RunState(), [{"kind": "run_ended", "rank": 0, "reason": "", "exit_code": 1, "first_failure": first}])
    assert patience_s(state, grace_s=60) == seconds


STARTER = """\
import os, sys
from dataclasses import dataclass, replace
from pathlib import Path
from titancli.launch.progress import Lines
from titancli.launch.supervise import supervise
from titancli.launch.torchrun import command
run, script, ready, grace_s = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
made = command(run, processes=1, threads=1, grace_s=float(sys.argv[5]), environ=os.environ)
made = replace(made, words=(*made.words[:-3], script, ready))
sys.exit(supervise(made, run, grace_s=grace_s, display=lambda: Lines(10)).exit_code)
"""
DEAF = """\
import signal, time, pathlib, sys
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
SAVING = """\
import signal, time, pathlib, sys
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3)
    pathlib.Path(sys.argv[1] + "-saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@dataclass(frozen=True)
class Worker:
    """One worker that runs a script of the test under torchrun and a launcher."""

    script: Path
    ready: Path
    launcher: subprocess.Popen[str]

    def left(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if str(self.script) in (p.info["cmdline"] or [])]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    launchers: list[subprocess.Popen[str]] = []

    def start(text: str, *, grace_s: float, torchruns_grace_s: float, **environ: str) -> Worker:
        run, script, ready = tmp_path / "x", tmp_path / "worker.py", tmp_path / "ready"
        (run / "logs").mkdir(parents=True)
        script.write_text(text, "utf-8")
        words = [sys.executable, "-c", STARTER, str(run), str(script), str(ready), str(grace_s), str(torchruns_grace_s)]
        launchers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | environ))
        wait_until(ready.exists)
        return Worker(script, ready, launchers[-1])

    yield start
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


def test_c42_worker_that_ignores_ctrl_c_is_killed_after_the_grace(worker: Callable[..., Worker]) -> None:
    started = worker(DEAF, grace_s=1.0, torchruns_grace_s=60.0)
    started.launcher.send_signal(signal.SIGINT)
    out, _ = started.launcher.communicate(timeout=30)
    assert started.launcher.returncode == 130
    assert "the 1 s of launch.grace_seconds are over; killing all processes\n" in out
    assert started.left() == []


def test_c42_second_ctrl_c_kills_at_once(worker: Callable[..., Worker]) -> None:
    started = worker(DEAF, grace_s=60.0, torchruns_grace_s=60.0)
    assert started.launcher.stdout is not None
    started.launcher.send_signal(signal.SIGINT)
    while "Ctrl-C again kills at once" not in started.launcher.stdout.readline():
        pass
    began_s = time.monotonic()
    started.launcher.send_signal(signal.SIGINT)
    assert started.launcher.wait(timeout=30) == 130
    assert time.monotonic() - began_s < 10
    assert started.left() == []


def test_c42_worker_that_saves_within_the_grace_is_left_to(worker: Callable[..., Worker]) -> None:
    # An outer launcher that had promised one second only has no say here.
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}
    started = worker(SAVING, grace_s=20.0, torchruns_grace_s=20.0, **environ)
    started.launcher.send_signal(signal.SIGTERM)
    out, _ = started.launcher.communicate(timeout=30)
    assert started.launcher.returncode == 143
    assert "are over" not in out
    assert started.ready.with_name("ready-saved").exists()


def test_bar_moves_in_a_terminal_of_60_columns_and_ctrl_c_ends_it(
    titan_command: tuple[str, ...], tmp_path: Path
) -> None:
    # A folder called like the library, in the folder that titan is started from, must not be taken for it.
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('the wrong engine')\n", "utf-8")
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    terminal = pexpect.spawn(
        titan_command[0],
        [*titan_command[1:], *LONG],
        cwd=str(tmp_path),
        env=environ | {"TERM": "xterm-256color"},
        dimensions=(24, 60),
        encoding="utf-8",
        timeout=60,
    )
    terminal.expect("starting processes")
    terminal.expect(r"training .*/100000")
    terminal.expect(r"loss \d+\.\d{4}  [\d,]+ tokens/s/process  \d+ MiB  left ")
    terminal.sendintr()
    terminal.expect("stopping; Ctrl-C again kills at once")
    terminal.expect("interrupted: ")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert of_run(tmp_path / "runs" / "x") == []


def test_c44_usual_port_in_use_is_no_hindrance(titan: Callable[..., Any], usual_port: int) -> None:
    with socket.socket() as usual:
        usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            usual.bind(("127.0.0.1", usual_port))
            usual.listen()
        except OSError:
            pass  # somebody else holds it: just as good
        words = ("--training.steps", "1", "--lr_scheduler.warmup_steps", "0")
        ran = titan("launch", "--preset", "quickstart", *words, NO_COLOR="1")
    assert ran.code == 0, ran.err


def test_mistake_that_only_the_workers_find_keeps_its_form_and_code(tmp_path: Path) -> None:
    corpus, run = tmp_path / "data.jsonl", tmp_path / "runs" / "x"
    corpus.write_text('{"text": "fine when launch looked"}\n{"text": \n', "utf-8")
    keys = {"training.dataset": "jsonl", "training.dataset_path": str(corpus)}
    loaded = load(preset="quickstart", flags=[Flag(key, value, f"--{key}") for key, value in keys.items()], environ={})
    create(Place(run=run), loaded, plan(loaded.config), "command")
    torchrun = command(run, processes=2, threads=1, grace_s=5.0, environ=os.environ)
    ending = supervise(torchrun, run, grace_s=5.0, display=lambda: Lines(5))
    text = failure_text(failures_of(run, ending.state), run, torchrun_tail="")
    assert ending.exit_code == 2
    assert "failed first: error[D204]" in text
    assert "Traceback" not in text


def test_run_goes_on_where_nobody_reads_its_output_any_more(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    words = ("launch", "--preset", "quickstart", "--training.steps", "1", "--lr_scheduler.warmup_steps", "0")
    ran = subprocess.Popen(
        [*titan_command, *words, "--name", "x"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.stdout is not None
    assert ran.stderr is not None
    ran.stdout.close()
    assert (ran.stderr.read(), ran.wait(timeout=60)) == ("", 0)
    ran.stderr.close()
    assert Follower(tmp_path / "runs" / "x").read().step == 1
