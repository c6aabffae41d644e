"""Faults that befall real runs, each once at a fixed moment; tests/bench/bench_faults.py tries all, over and over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_trial import Trial
from faults import FAULTS
from faulty import send

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
