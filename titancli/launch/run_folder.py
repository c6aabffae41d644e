"""The folder of a run: its name, whether it may be taken, and what the launcher writes into it.

Knows which run of a name is going on, complete, or of another config. Does not start anything.
A folder appears whole or not at all, and none is ever deleted: `--overwrite` moves it aside.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.keys import field_types, value_of
from engine.planner.plan import Plan
from engine.sources import Loaded, load, locate, to_toml
from titancli import report
from titancli.monitor.follow import Follower, Launcher, judge

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")
_MOST_KEYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is going to stand; `taken` is a folder that has to be moved aside first."""

    run: Path
    taken: bool = False


def choose(loaded: Loaded, *, resume: bool, overwrite: bool, now_s: float) -> Place | Path:
    """The place of a new run, or the folder of the same run where that is complete already.

    TitanError where the name cannot be one, or is taken by a run that must not be touched.
    """
    job = loaded.config.job
    if resume and overwrite:
        raise TitanError(
            report.error("U106", "--resume goes on with a run and --overwrite starts it anew", "give one of them")
        )
    if not job.name:
        if resume:
            raise TitanError(report.error("R101", "--resume needs the name of a run", "give --name NAME too"))
        return Place(run=_unnamed(Path(job.dump_folder), loaded.stem, now_s))
    if not _NAME.fullmatch(job.name):
        message = f"job.name = {job.name!r} cannot name a folder"
        raise TitanError(
            _at(loaded, "R102", message, "use letters, digits and any of . _ - + =, without a dot in front")
        )
    run = Path(job.dump_folder) / job.name
    if not run.exists():
        if resume:
            message = f"there is no run {job.name} in {job.dump_folder} to resume"
            raise TitanError(_at(loaded, "R103", message, "leave --resume out to start it"))
        return Place(run=run)
    return _existing(loaded, run, overwrite=overwrite)


def _unnamed(runs: Path, stem: str, now_s: float) -> Path:
    """`<stem>-YYYYMMDD-HHMMSS`, with a counter where two launches meet in one second."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]", "_", stem).lstrip(".-") or "titan"
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}"
    counted = (runs / (name if count == 1 else f"{name}-{count}") for count in range(1, 10_000))
    return next(run for run in counted if not run.exists())


def _existing(loaded: Loaded, run: Path, *, overwrite: bool) -> Place | Path:
    state = judge(Follower(run).read(), Launcher.read(run))
    launcher = Launcher.read(run)
    if state in ("starting", "running") and launcher is not None and launcher.is_alive is not False:
        message = f"the run {run} is going on (process {launcher.pid} on {launcher.host})"
        raise TitanError(_at(loaded, "R104", message, f"watch it with titan monitor {run}, or give another --name"))
    if overwrite:
        return Place(run=run, taken=True)
    kept = "give another --name, or --overwrite to start anew (the old folder is kept beside it)"
    if not (run / "config.toml").is_file():
        raise TitanError(_at(loaded, "R105", f"{run} exists and is not the folder of a run", kept))
    other = differences(load(run / "config.toml", environ={}).config, loaded.config)
    if other:
        raise TitanError(_at(loaded, "R105", f"{run} holds a run of another config: {other}", kept))
    if state == "finished":
        return run
    message = f"{run} holds this run, {state} and without a checkpoint to resume from"
    raise TitanError(_at(loaded, "R106", message, kept))


def differences(old: Config, new: Config) -> str:
    """The keys whose values differ, in words: `training.steps is 10 there and 20 here`; empty where none does."""
    changed = [key for key in field_types() if value_of(old, key) != value_of(new, key)]
    words = [f"{key} is {value_of(old, key)!r} there and {value_of(new, key)!r} here" for key in changed[:_MOST_KEYS]]
    more = len(changed) - len(words)
    return ", ".join(words) + (f", and {more} more" if more else "")


def create(place: Place, loaded: Loaded, plan: Plan, command: str) -> str:
    """Writes the run folder; returns where a folder that stood there was moved to, else an empty text.

    TitanError where the disk does not take it; nothing is left of it then.
    """
    partial = place.run.with_name(f".{place.run.name}.partial")
    with _whole_or_nothing(place.run, partial):
        for folder in ("events", "logs", "checkpoints"):
            (partial / folder).mkdir(parents=True)
        (partial / "config.toml").write_text(to_toml(loaded.config), "utf-8")
        (partial / "plan.json").write_text(json.dumps(plan.to_json(), indent=1) + "\n", "utf-8")
        (partial / "command.txt").write_text(command + "\n", "utf-8")
        Launcher.this_process().write(partial)
        aside = _move_aside(place.run) if place.taken else ""
        partial.rename(place.run)
    return aside


def _move_aside(run: Path) -> str:
    free = next(
        old for old in (run.with_name(f"{run.name}.old-{count}") for count in range(1, 10_000)) if not old.exists()
    )
    run.rename(free)
    return str(free)


@contextmanager
def _whole_or_nothing(run: Path, partial: Path) -> Iterator[None]:
    """Takes away what was written, and the folders made for it, where the disk does not take all of it."""
    made = [folder for folder in run.parents if not folder.exists()]
    try:
        yield
    except OSError as trouble:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        message = f"cannot write the run folder {run}: {(trouble.strerror or str(trouble)).lower()}"
        raise TitanError(
            report.error(
                "R107",
                message,
                "make room or set job.dump_folder to a folder that can be written",
                key="job.dump_folder",
            )
        ) from trouble


def _at(loaded: Loaded, rule: str, message: str, fix: str) -> Finding:
    file, line, source = locate(loaded.origins, "job.name")
    return Finding(
        rule=rule, severity="error", key="job.name", message=message, fix=fix, file=file, line=line, source=source
    )
