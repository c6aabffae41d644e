"""The folder of a run: its name, whether it may be taken, and what the launcher writes into it.

Knows which run of a name is going on, complete, or of another config. Does not start anything.
A folder appears whole or not at all, and none is ever deleted: `--overwrite` moves it aside.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.keys import field_types, value_of
from engine.planner.plan import Plan
from engine.settled import settled_by, write_settled
from engine.sources import Loaded, load, locate, to_toml
from titancli import report
from titancli.launch.slurm_job import Job
from titancli.monitor.follow import Follower, Launcher, folder_of_runs, judge

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
        return Place(run=_unnamed(folder_of_runs(job.dump_folder), loaded.stem, now_s))
    if not _NAME.fullmatch(job.name):
        message = f"job.name = {job.name!r} cannot name a folder"
        raise TitanError(
            _at(loaded, "R102", message, "use letters, digits and any of . _ - + =, without a dot in front")
        )
    run = folder_of_runs(job.dump_folder) / job.name
    if not os.path.lexists(run):
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
    return next(run for run in counted if not os.path.lexists(run))


def _existing(loaded: Loaded, run: Path, *, overwrite: bool) -> Place | Path:
    state = judge(Follower(run).read(), Launcher.read(run))
    launcher = Launcher.read(run)
    if state in ("starting", "running") and launcher is not None and launcher.is_alive is not False:
        message = f"the run {run} is going on (process {launcher.pid} on {launcher.host})"
        raise TitanError(_at(loaded, "R104", message, f"watch it with titan monitor {run}, or give another --name"))
    job = Job.read(run)
    if job is not None and (queued := job.state()) is not None:
        message = f"the run {run} is job {job.id} of Slurm ({queued})"
        raise TitanError(_at(loaded, "R104", message, f"end it first (scancel {job.id}), or give another --name"))
    if overwrite:
        return Place(run=run, taken=True)
    kept = "give another --name, or --overwrite to start anew (the old folder is kept beside it)"
    if not os.path.isfile(run / "config.toml"):
        raise TitanError(_at(loaded, "R105", f"{run} exists and is not the folder of a run", kept))
    there = load(run / "config.toml", environ={})
    if there.findings:
        raise TitanError(_at(loaded, "R105", f"{run} holds a run whose config.toml cannot be read", kept))
    other = differences(there.config, loaded.config)
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


@contextmanager
def alone_in(runs: Path) -> Iterator[None]:
    """Keeps other launches of this machine from choosing or making a run in this folder within the block.

    The folder is made where it is not there, and taken away again where it is empty afterwards.
    TitanError where it cannot be had.
    """
    made = [folder for folder in (runs, *runs.parents) if not os.path.lexists(folder)]
    with _told(runs):
        runs.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(runs):
            yield
    finally:
        for folder in made:
            # Only one that is empty goes.
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems lock no folders; there a run's own folder is still renamed into place by one only.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def create(place: Place, loaded: Loaded, plan: Plan, command: str, *, files: Mapping[str, str] | None = None) -> str:
    """Writes the run folder; returns where a folder that stood there was moved to, else an empty text.

    `files` are the further ones, by name, of a run that a scheduler starts: this process is not its launcher then.
    TitanError where the disk does not take it, or another launch came first; nothing is left of it then.
    """
    partial = place.run.with_name(f".{place.run.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with _told(place.run):
            for folder in ("events", "logs", "checkpoints"):
                (partial / folder).mkdir(parents=True)
            (partial / "config.toml").write_text(to_toml(loaded.config), "utf-8")
            write_settled(partial, settled_by(loaded.config, plan))
            (partial / "plan.json").write_text(json.dumps(plan.to_json(), indent=1) + "\n", "utf-8")
            (partial / "command.txt").write_text(command + "\n", "utf-8")
            if files is None:
                Launcher.this_process().write(partial)
            for name, text in (files or {}).items():
                (partial / name).write_text(text, "utf-8")
            aside = _move_aside(place.run) if place.taken else ""
            _put_in_place(loaded, partial, place.run)
        return aside
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def withdraw(run: Path, aside: str) -> None:
    """Takes a folder back in which nothing was started, and puts the one that it replaced where it stood."""
    shutil.rmtree(run, ignore_errors=True)
    if aside:
        Path(aside).rename(run)


def _put_in_place(loaded: Loaded, partial: Path, run: Path) -> None:
    try:
        partial.rename(run)
    except OSError as trouble:
        if trouble.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        message = f"another launch has just taken {run}"
        raise TitanError(
            _at(loaded, "R104", message, f"watch it with titan monitor {run}, or give another --name")
        ) from (trouble)


def _move_aside(run: Path) -> str:
    olds = (run.with_name(f"{run.name}.old-{count}") for count in range(1, 10_000))
    free = next(old for old in olds if not os.path.lexists(old))
    run.rename(free)
    return str(free)


@contextmanager
def _told(run: Path) -> Iterator[None]:
    """Says as a finding what the disk does not take."""
    try:
        yield
    except OSError as trouble:
        message = f"cannot write the run folder {run}: {(trouble.strerror or str(trouble)).lower()}"
        fix = "make room or set job.dump_folder to a folder that can be written"
        raise TitanError(report.error("R107", message, fix, key="job.dump_folder")) from trouble


def _at(loaded: Loaded, rule: str, message: str, fix: str) -> Finding:
    file, line, source = locate(loaded.origins, "job.name")
    return Finding(
        rule=rule, severity="error", key="job.name", message=message, fix=fix, file=file, line=line, source=source
    )
