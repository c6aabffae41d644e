"""Whether a job of Slurm that was stopped goes back into the queue: where its time was taken, and not by a person.

Knows `scontrol`. Slurm itself requeues a job whose node fails or that is preempted without a grace. One that saves in
the grace of its partition, or before its time limit, ends by itself, and Slurm calls it failed: it has to ask.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from engine.config import Config
from engine.rules.jobs import option_name
from titancli.monitor.run_state import RunState

_ANSWERS_WITHIN_S = 30.0
# Slurm looks at its clock once a minute, and the ranks have saved since.
_EARLY_S = 90.0


def goes_back(config: Config) -> bool:
    """Whether a job of a config asks to be requeued, by Slurm or by itself: it needs a checkpoint to go on from."""
    return config.checkpoint.enable and "no-requeue" not in map(option_name, config.launch.slurm.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a stopped job, in words or empty; `goes_on` by itself, and `asks` Slurm for that."""

    text: str = ""
    goes_on: bool = False
    asks: bool = False


def fate(job: str, starts: int, config: Config, state: RunState) -> Fate:
    """What becomes of the stopped job that this process is part of, which Slurm had put back `starts` times before."""
    try:
        told = _asked("show", "job", "--oneliner", job)
    except OSError:
        return Fate()
    if was_put_back(told, starts):
        return Fate(text=f"Slurm has put job {job} back into the queue: {_next_step(config, state)}", goes_on=True)
    reason = taken_by(told, config.launch.grace_seconds)
    if not reason or not config.checkpoint.enable:
        return Fate()
    if not has_progressed(state):
        why = "no checkpoint was committed since it started"
        return Fate(text=f"{reason}; the job does not go back into the queue: {why}")
    return Fate(
        text=f"{reason}; job {job} goes back into the queue, and on after step {state.saved_step}",
        goes_on=True,
        asks=True,
    )


def put_back(job: str) -> str:
    """Asks Slurm to put a job back, which then ends this process soon; the trouble with that, or nothing."""
    try:
        _asked("requeue", job)
    except OSError as trouble:
        return f"the job cannot go back into the queue: {trouble}"
    return ""


def was_put_back(told: str, starts: int) -> bool:
    """Whether Slurm counts more starts of a job than it had when this one began: a person or a lost node did it."""
    counted = re.search(r"(?:^| )Restarts=(\d+)", told)
    return counted is not None and int(counted[1]) > starts


def _next_step(config: Config, state: RunState) -> str:
    if not config.checkpoint.enable:
        return "it begins anew, as checkpoint.enable is false"
    return "it starts at step 1" if state.saved_step is None else f"it goes on after step {state.saved_step}"


def has_progressed(state: RunState) -> bool:
    """Whether an attempt has saved a step that it did not begin with: else it would go round for ever."""
    return state.saved_step is not None and state.saved_step > (state.resumed_step or 0)


def taken_by(told: str, grace_s: float, now_s: float | None = None) -> str:
    """Why Slurm ends a job, by what `scontrol show job` tells; empty where it does not, or may not requeue it.

    A job that a person cancels is not RUNNING any more while its processes end.
    """
    fields: Mapping[str, str] = dict(re.findall(r"(?:^| )(JobState|Requeue|EndTime|PreemptTime)=(\S+)", told))
    if fields.get("JobState") != "RUNNING" or fields.get("Requeue") != "1":
        return ""
    if _time_s(fields.get("PreemptTime")) is not None:
        return "preempted"
    end_s = _time_s(fields.get("EndTime"))
    left_s = None if end_s is None else end_s - (time.time() if now_s is None else now_s)
    return "the time limit of the job is near" if left_s is not None and left_s < grace_s + _EARLY_S else ""


def _time_s(told: str | None) -> float | None:
    """Unix seconds of a time as Slurm writes it, in the time zone of this machine; None for Unknown and None."""
    try:
        return None if told is None else datetime.fromisoformat(told).timestamp()
    except ValueError:
        return None


def _asked(*words: str) -> str:
    """What scontrol answers; OSError where it does not do what it is asked."""
    try:
        asked = subprocess.run(
            ("scontrol", *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"scontrol has not answered in {_ANSWERS_WITHIN_S:.0f} s") from None
    if asked.returncode != 0:
        raise OSError(" ".join(asked.stderr.split()) or f"scontrol exited with {asked.returncode}")
    return asked.stdout
