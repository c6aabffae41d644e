"""Faults that a rank does to itself: exceptions, memory, numbers, data, sleep."""

from __future__ import annotations

from fault_row import expect_saved, fault, killed_after_saves, place
from fault_trial import Trial
from faulty import STEPS


@fault("build", "first step", "mid-step", "saving", "end")
def exception(trial: Trial) -> None:
    """An exception on one rank."""
    rank = trial.random.randrange(trial.ranks)
    launch = trial.launch(faults=[{"do": "raise", "rank": rank, **place(trial)}])
    said = (f"rank {rank} failed first: ValueError: boom-17",)
    trial.expect(launch, {1}, *said, log=True, ended={"rank": rank, "type": "ValueError"})
    trial.expect_resumed(launch)


@fault("saving")
def exception_while_loading(trial: Trial) -> None:
    """An exception on one rank while a checkpoint is loaded."""
    rank = trial.random.randrange(trial.ranks)
    killed = killed_after_saves(trial, trial.random.randint(1, 3))
    trial.kept = killed.committed()
    fault = {"do": "raise", "rank": rank, "at": {"kind": "phase", "name": "load", "state": "begin"}}
    launch = trial.launch("--resume", faults=[fault])
    said = (f"rank {rank} failed first: ValueError: boom-17",)
    trial.expect(launch, {1}, *said, log=True, ended={"rank": rank, "type": "ValueError"})
    trial.expect_resumed(launch)


@fault("build", "first step", "mid-step", "end")
def out_of_memory(trial: Trial) -> None:
    """Out of memory on one rank."""
    rank = trial.random.randrange(trial.ranks)
    launch = trial.launch(faults=[{"do": "no_memory", "rank": rank, **place(trial)}])
    trial.expect(launch, {1}, f"rank {rank} failed first: ", "memory", log=True, ended={"rank": rank})
    trial.expect_resumed(launch)


@fault("mid-step", "first step", "end")
def not_a_number(trial: Trial) -> None:
    """NaN in a gradient of one rank."""
    step = {"first step": 1, "end": STEPS}.get(trial.moment) or trial.random.randint(2, STEPS - 1)
    rank = trial.random.randrange(trial.ranks)
    launch = trial.launch(faults=[{"do": "nan", "rank": rank, "at": "backward", "step": step}])
    trial.expect(launch, {1}, "NonFiniteStep", f"step {step}: ", f"on rank {rank}", log=True)
    if bad := [saved for saved in launch.committed() if saved >= step]:
        trial.problem(f"saved after the bad step {step}: {bad}")
    trial.expect_resumed(launch)


@fault("mid-step")
def learning_rate_too_high(trial: Trial) -> None:
    """A learning rate that makes weights overflow."""
    launch = trial.launch("--optimizer.lr", f"1e{trial.random.randint(25, 37)}", "--checkpoint.interval", "1")
    trial.expect(launch, {1}, "NonFiniteStep", "step ", "optimizer.lr", log=True)
    done, saved = max(step for step, _ in launch.steps()), max(launch.committed(), default=0)
    if saved > done:
        trial.problem(f"step {done} was the last with a finite loss, and step {saved} is saved")


@fault("build", "first step", "mid-step", "saving")
def rank_sleeps(trial: Trial) -> None:
    """A rank that sleeps forever."""
    rank = trial.random.randrange(trial.ranks)
    launch = trial.launch("--comm.init_timeout_seconds", "15", faults=[{"do": "sleep", "rank": rank, **place(trial)}])
    trial.expect(launch, {1}, f"rank {rank} ", "StuckRank", limit_s=90, log=True, ended={"rank": rank})
    trial.expect_resumed(launch)


@fault("mid-step")
def data_ends_on_one_rank(trial: Trial) -> None:
    """Data that ends early on one rank."""
    rank, step = trial.random.randrange(trial.ranks), trial.random.randint(2, STEPS)
    launch = trial.launch(faults=[{"do": "no_data", "rank": rank, "at": "batches", "step": step}])
    trial.expect(launch, {0})
    if not (launch.steps() and launch.steps()[-1][0] == step - 1 and f"rank {rank}" in launch.out):
        trial.problem(f"rank {rank} had no data for step {step}, and it says: {launch.out[-800:]}")
    expect_saved(trial, launch)


@fault("mid-step")
def data_ends(trial: Trial) -> None:
    """All data ends early."""
    step = trial.random.randint(2, STEPS - 2)
    text = (trial.folder / "corpus" / "words.txt").read_text("utf-8")
    (trial.folder / "corpus" / "words.txt").write_text(text[: (step * 8 + 3) * 64], "utf-8")
    launch = trial.launch("--no-data.repeat")
    trial.expect(launch, {0})
    if not (launch.steps() and launch.steps()[-1][0] == step and "ended early" in launch.out):
        trial.problem(f"the data ended after step {step}, and it says: {launch.out[-800:]}")
    expect_saved(trial, launch)
