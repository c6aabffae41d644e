"""A real lack of memory in a real run: the address space of its processes is limited."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.events import event_file, missing_fields, read_new
from engine.sources import load
from titancli.monitor.follow import Follower, Launcher, judge

pytestmark = pytest.mark.world
GIB = 1 << 30
# The logits of 8 sequences take 0.3 GiB more than those of 4.
WORDS = (
    *("launch", "--preset", "quickstart", "--training.steps", "2", "--lr_scheduler.warmup_steps", "1"),
    *("--metrics.log_freq", "1", "--model.shape.vocab_size", "50000"),
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A launch: what it wrote, its run folder, and the largest address space of a worker."""

    code: int
    out: str
    err: str
    run: Path
    space_bytes: int

    @property
    def losses(self) -> list[float]:
        """Of the steps that the last attempt has logged, in their order: memory may run out in the second."""
        events, _ = read_new(event_file(self.run, 0))
        began = max(place for place, event in enumerate(events) if event["kind"] == "run_started")
        return [event["loss"] for event in events[began:] if event["kind"] == "step"]


@pytest.fixture(scope="module")
def launched(titan_words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """`launched(*words, limit_bytes=...)` launches a run of two processes, each of which gets so much address space."""

    def launch(*words: str, limit_bytes: int | None = None) -> Ran:
        folder = tmp_path_factory.mktemp("again")

        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

        process = subprocess.Popen(
            [*titan_words, *WORDS, "--name", "x", *words],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("TITAN_")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        spaces = [0]
        watching = threading.Thread(target=_watch, args=(process, spaces))
        watching.start()
        out, err = process.communicate(timeout=300)
        watching.join()
        return Ran(code=process.returncode, out=out, err=err, run=folder / "runs" / "x", space_bytes=max(spaces))

    return launch


def _watch(process: subprocess.Popen[str], spaces: list[int]) -> None:
    """Notes the largest address space so far of every process below one, until it ends."""
    root = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            spaces += [_largest_space_bytes(child.pid) for child in root.children(recursive=True)]
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
        # The system keeps the peak, and a look at all processes costs them time.
        time.sleep(0.2)


def _largest_space_bytes(pid: int) -> int:
    """Peak of a process's address space; 0 of one that has ended and waits to be told."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmPeak:")), 0)


@pytest.fixture(scope="module")
def titan_words() -> tuple[str, ...]:
    """The words that start `titan`."""
    return (sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")


@pytest.fixture(scope="module")
def enough(launched: Callable[..., Ran]) -> Ran:
    """A run of 8 sequences at once that has all the memory it needs."""
    return launched("--training.local_batch_size", "8")


@pytest.fixture(scope="module")
def half(launched: Callable[..., Ran]) -> Ran:
    """The same steps of 4 sequences at once, asked for."""
    return launched("--training.local_batch_size", "4", "--training.global_batch_size", "16")


@pytest.fixture(scope="module")
def shrunk(launched: Callable[..., Ran], enough: Ran, half: Ran) -> Ran:
    """The run of 8 at once with memory for 4."""
    assert enough.space_bytes - half.space_bytes > GIB // 5
    limit = (enough.space_bytes + half.space_bytes) // 2
    words = ("--training.local_batch_size", "8", "--training.on_out_of_memory", "shrink")
    return launched(*words, limit_bytes=limit)


def test_a_run_without_memory_for_its_batch_ends_well_with_half_of_it(shrunk: Ran) -> None:
    assert (shrunk.code, shrunk.err) == (0, "")
    plan = json.loads((shrunk.run / "plan.json").read_text("utf-8"))
    assert (plan["local_batch_size"], plan["gradient_accumulation_steps"], plan["global_batch_size"]) == (4, 2, 16)


def test_its_losses_are_those_of_both_batches(shrunk: Ran, enough: Ran, half: Ran) -> None:
    assert len(shrunk.losses) == 2
    assert shrunk.losses == pytest.approx(enough.losses, rel=1e-5)
    assert shrunk.losses == pytest.approx(half.losses, rel=1e-5)


def test_it_is_told_in_one_line(shrunk: Ran) -> None:
    told = [line for line in shrunk.out.splitlines() if "out of memory" in line]
    assert len(told) == 1
    assert told[0].endswith(
        "started again with 4 sequences at once x 2 accumulation instead of 8 sequences at once x 1 accumulation"
    )


def test_its_config_is_still_what_was_asked(shrunk: Ran, enough: Ran) -> None:
    asked = load(shrunk.run / "config.toml", environ={}).config.training
    assert (asked.local_batch_size, asked.global_batch_size) == (8, -1)
    assert json.loads((shrunk.run / "settled.json").read_text("utf-8")) == {
        "training.local_batch_size": 4,
        "training.global_batch_size": 16,
    }
    assert not (enough.run / "settled.json").exists()


def test_its_events_are_one_file_a_rank_with_both_attempts(shrunk: Ran) -> None:
    events, _ = read_new(event_file(shrunk.run, 0))
    assert [missing_fields(event) for event in events if missing_fields(event)] == []
    kinds = [event["kind"] for event in events]
    assert (kinds.count("run_started"), kinds.count("run_ended"), kinds.count("warning")) == (2, 2, 1)
    assert kinds.index("run_ended") < kinds.index("warning")


def test_the_monitor_reads_it_as_a_run_that_went_well(shrunk: Ran) -> None:
    state = Follower(shrunk.run).read()
    assert judge(state, Launcher.read(shrunk.run)) == "finished"
    assert (state.step, state.first_failure, len(state.losses)) == (2, None, 2)
    assert "out of memory on rank" in state.warnings[0].message


def test_the_same_launch_again_finds_it_complete(shrunk: Ran, titan_words: tuple[str, ...]) -> None:
    words = (*WORDS, "--training.local_batch_size", "8", "--training.on_out_of_memory", "shrink", "--name", "x")
    done = subprocess.run(
        [*titan_words, *words], cwd=shrunk.run.parents[1], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the run runs/x is complete: all 2 steps are done\n")


def test_without_the_setting_it_fails_and_says_what_helps(launched: Callable[..., Ran], enough: Ran, half: Ran) -> None:
    limit = (enough.space_bytes + half.space_bytes) // 2
    ran = launched("--training.local_batch_size", "8", limit_bytes=limit)
    assert ran.code == 1
    assert "error[R202]: rank" in ran.err
    assert "  moment     step " in ran.err
    assert "more than ulimit -v = " in ran.err
    assert "fix: set training.local_batch_size to " in ran.err
    assert "started again" not in ran.out


def test_where_no_smaller_batch_is_left_it_fails_and_says_so(launched: Callable[..., Any], half: Ran) -> None:
    words = ("--training.local_batch_size", "1", "--training.on_out_of_memory", "shrink")
    ran = launched(*words, "--model.shape.vocab_size", "600000", limit_bytes=half.space_bytes)
    assert ran.code == 1
    assert "and no smaller batch is left to try" in ran.out
    assert "error[R202]: rank" in ran.err
