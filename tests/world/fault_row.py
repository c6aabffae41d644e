"""What a fault is in the table: a function of a Trial, whose docstring is the fault in words, and its moments.

Knows what several faults share. Those that a rank does to itself wait in the worker (planted/); the others are done
from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from fault_trial import Trial
from faulty import INTERVAL, STEPS, Launch

Do = Callable[[Trial], None]
ALWAYS = ("start-up", "build", "first step", "mid-step", "saving", "end")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the moments at which it can strike; `needs_root` where it mounts something."""

    name: str
    do: Do
    moments: tuple[str, ...]
    needs_root: bool = False

    @property
    def text(self) -> str:
        """The fault in words."""
        return (self.do.__doc__ or self.name).splitlines()[0].rstrip(".")


FAULTS: dict[str, Fault] = {}
"""Every fault by its name; filled by the modules that faults.py imports."""


def fault(*moments: str, needs_root: bool = False) -> Callable[[Do], Do]:
    """Makes a row of a function."""

    def register(do: Do) -> Do:
        FAULTS[do.__name__] = Fault(do.__name__, do, moments, needs_root)
        return do

    return register


def place(trial: Trial) -> dict[str, object]:
    """Where in a worker a planted fault strikes at the moment of the trial."""
    step = trial.random.randint(2, STEPS - 1)
    if trial.moment == "start-up":
        return {"at": "start"}
    if trial.moment == "build":
        return {"at": {"kind": "phase", "name": "build", "state": "begin"}}
    if trial.moment == "first step":
        return {"at": "batches", "step": 1}
    if trial.moment == "saving":
        return {"at": {"kind": "phase", "name": "save", "state": "begin"}}
    if trial.moment == "end":
        return {"at": {"kind": "step", "step": STEPS}}
    return {"at": trial.random.choice(("batches", "backward")), "step": step}


def expect_saved(trial: Trial, launch: Launch) -> None:
    """Every step that was done is in a committed checkpoint."""
    done, saved = max(step for step, _ in launch.steps()), max(launch.committed(), default=0)
    if saved < done:
        trial.problem(f"asked to end, it did step {done} and saved step {saved}")


def killed_after_saves(trial: Trial, count: int) -> Launch:
    """A run that was killed once so many checkpoints were committed."""
    launch = trial.launch()
    launch.until(launch.has_written("checkpoint", step=INTERVAL * count, state="committed"))
    for pid in launch.alive():
        os.kill(pid, signal.SIGKILL)
    launch.wait(10)
    launch.left(10)
    return launch
