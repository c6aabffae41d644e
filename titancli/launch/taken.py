"""What a folder that stands where a run is to go means for it: somebody else's, the same run, or one to go on with.

Knows configs, checkpoints and who still holds the folder. Does not write (run_folder), nor how a lease is told
from a dead one's (lease).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.config import Config
from engine.errors import EXIT_OK, Finding, TitanError
from engine.keys import field_types, value_of
from engine.settled import read_settled
from engine.shrink import GLOBAL_BATCH, LOCAL_BATCH, MICROBATCH
from engine.sources import Loaded, load, locate
from titancli.launch.slurm_job import Job
from titancli.launch.summary import COMPLETED
from titancli.monitor.follow import Follower, Launcher, judge
from titancli.monitor.signs import HELD_FOR_S, is_held
from titancli.resume import Start, look_at_start

_MOST_KEYS = 5
# They say where a run stands, which is where it was found.
_OF_THE_PLACE = ("job.name", "job.dump_folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run to go on with: where it begins, the launcher that it had, and what is other than when it was started.

    `settled` are numbers of its own that it keeps: those of a batch that was made smaller to fit the memory.
    """

    start: Start
    launcher: Launcher | None
    changed: str
    settled: dict[str, Any]

    def text(self, steps: int) -> str:
        """Where it goes on, in words."""
        if self.start.step is None:
            return f"starts {self.start.text}"
        return f"goes on after step {self.start.step} of {steps} from {self.start.path}"


def judge_taken(loaded: Loaded, run: Path, *, resume: bool, overwrite: bool) -> Resumed | Literal["complete", "aside"]:
    """What is to be done with the folder; TitanError where that is nothing."""
    launcher = Launcher.read(run)
    _require_left(loaded, run, launcher)
    if overwrite:
        return "aside"
    anew = "give another --name, or --overwrite to start anew (the old folder is kept beside it)"
    there = _config_of(loaded, run, anew)
    seen = Follower(run).read()
    state = judge(seen, launcher, holds=False)
    other = differences(there, loaded.config)
    saves = loaded.config.checkpoint.enable
    if other and not resume:
        fix = f"{anew}{', or --resume to go on with this one' if saves else ''}"
        raise TitanError(at_name(loaded, "R105", f"{run} holds a run of another config: {other}", fix))
    if not other and state == "finished":
        return "complete"
    # Of a run that has not come to the end of its first step, nothing can be lost.
    has_trained = bool(seen.losses) or state == "finished"
    if not saves and has_trained:
        message = f"{run} holds this run, {state} and without a checkpoint to resume from: checkpoint.enable is false"
        raise TitanError(at_name(loaded, "R106", message, f"{anew}; checkpoint.enable keeps what a run has done"))
    findings, start = look_at_start(loaded)
    if any(finding.severity == "error" for finding in findings):
        raise TitanError(*findings)
    if state == "finished" and start.step is not None and start.step >= loaded.config.training.steps:
        return "complete"
    if start.step is None and has_trained and not resume:
        message = f"{run} holds this run, {state} and without a checkpoint to resume from"
        fix = f"give --resume to start it again in its folder, or {anew}"
        raise TitanError(*findings, at_name(loaded, "R106", message, fix))
    settled = {} if other else _smaller_batch(run)
    return Resumed(start=start, launcher=launcher, changed=other, settled=settled)


def _require_left(loaded: Loaded, run: Path, launcher: Launcher | None) -> None:
    """TitanError where somebody still runs it, or is going to."""
    if launcher is not None and is_held(run, launcher):
        message = f"the run {run} is going on (process {launcher.pid} on {launcher.host})"
        fix = f"watch it with titan monitor {run}, or give another --name"
        if launcher.is_alive is None:
            fix += f"; if that host is dead, launch again once the run has shown no sign for {HELD_FOR_S:.0f} s"
        raise TitanError(at_name(loaded, "R104", message, fix))
    job = Job.read(run)
    if job is not None and (queued := job.state()) is not None:
        message = f"the run {run} is job {job.id} of Slurm ({queued})"
        fix = f"end it first (scancel {job.named()}), or give another --name"
        raise TitanError(at_name(loaded, "R104", message, fix))


def _config_of(loaded: Loaded, run: Path, anew: str) -> Config:
    """The config of the run that stands there; TitanError where none can be read."""
    if not os.path.isfile(run / "config.toml"):
        raise TitanError(at_name(loaded, "R105", f"{run} exists and is not the folder of a run", anew))
    there = load(run / "config.toml", environ={})
    if there.findings:
        raise TitanError(at_name(loaded, "R105", f"{run} holds a run whose config.toml cannot be read", anew))
    return there.config


def completed(loaded: Loaded, run: Path) -> tuple[str, str]:
    """What is said of a run that has nothing left to do, and of a config that asks for something else; else empty."""
    there = load(run / "config.toml", environ={})
    config = loaded.config if there.findings else there.config
    first = Follower(run).read().ranks.get(0)
    other = differences(config, loaded.config)
    done = f"all {config.training.steps} steps are done"
    if first is not None and first.exit_code == EXIT_OK and not (first.reason_ended or "").startswith(COMPLETED):
        done = f"it ended early, as {first.reason_ended}"
    return f"the run {run} is complete: {done}", f"not applied, as no step is left: {other}" if other else ""


def differences(old: Config, new: Config) -> str:
    """The keys whose values differ, in words: `training.steps is 10 there and 20 here`; empty where none does."""
    keys = (key for key in field_types() if key not in _OF_THE_PLACE)
    changed = [key for key in keys if value_of(old, key) != value_of(new, key)]
    words = [f"{key} is {value_of(old, key)!r} there and {value_of(new, key)!r} here" for key in changed[:_MOST_KEYS]]
    more = len(changed) - len(words)
    return ", ".join(words) + (f", and {more} more" if more else "")


def _smaller_batch(run: Path) -> dict[str, Any]:
    """The batch that a run was started again with when its memory ran out; empty where it never was."""
    settled = read_settled(run)
    if GLOBAL_BATCH not in settled:
        return {}
    return {key: settled[key] for key in (LOCAL_BATCH, GLOBAL_BATCH, MICROBATCH) if key in settled}


def at_name(loaded: Loaded, rule: str, message: str, fix: str) -> Finding:
    """An error that points at where the run was given its name."""
    file, line, source = locate(loaded.origins, "job.name")
    return Finding(
        rule=rule, severity="error", key="job.name", message=message, fix=fix, file=file, line=line, source=source
    )
