"""Faults that befall real runs, each once at a fixed moment; tests/bench/bench_faults.py tries all, over and over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fault_trial import Trial
from faults import FAULTS
from faulty import send

from titancli.launch.progress import Lines
from titancli.launch.summary import failure_text
from titancli.launch.supervise import supervise
from titancli.launch.torchrun import command
from titancli.monitor.failure import failures_of

pytestmark = pytest.mark.world


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """A try with two ranks; whatever it leaves is ended."""
    made = Trial(tmp_path, "mid-step", seed=17, undisturbed={})
    made.ranks = 2
    yield made
    made.close()


def test_c42_sigterm_to_rank_0_alone_saves_one_step_on_all_and_leaves_nothing(trial: Trial) -> None:
    launch = trial.launch()
    trial.reach(launch)
    assert send(launch.workers()[0], signal.SIGTERM)
    trial.struck(launch)
    trial.expect(launch, {143})
    assert trial.problems == []
    last_steps = {[event["step"] for event in launch.events(rank) if event["kind"] == "step"][-1] for rank in (0, 1)}
    assert last_steps == {max(launch.committed())}


def test_c41_exception_while_loading_after_kill_9_is_named_and_losses_of_the_resumed_run_are_as_if_nothing_was(
    trial: Trial,
) -> None:
    FAULTS["exception_while_loading"].do(trial)
    assert trial.problems == []


DEAF = """\
import os, pathlib, signal, sys, time
ready = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(2.5)  # the launcher looks at its processes every second, and a real rank takes longer to start
    ready.touch()
    time.sleep(600)
while not ready.exists():
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_c41_rank_that_waits_for_a_killed_one_is_neither_waited_for_nor_taken_for_the_cause(tmp_path: Path) -> None:
    run, script = tmp_path / "x", tmp_path / "deaf.py"
    (run / "logs").mkdir(parents=True)
    script.write_text(DEAF, "utf-8")
    torchrun = command(run, processes=2, threads=1, grace_s=1.0, environ=os.environ)
    torchrun = replace(torchrun, words=(*torchrun.words[:-3], str(script), str(tmp_path / "ready")))
    ending = supervise(torchrun, run, grace_s=1.0, display=lambda: Lines(10))
    text = failure_text(failures_of(run, ending.state), run, torchrun_tail="")
    assert (ending.exit_code, ending.seconds < 25) == (1, True)  # torchrun alone would take more than 30 s
    assert text.startswith("error[R202]: rank 1 failed first: SIGKILL: the process was killed from outside")
    assert "\nsecondary: rank 0: SIGKILL: killed as it waited for a rank that had failed" in text
