"""The folder of a run: its name, and what the launcher writes into it.

Does not know what a folder that stands there means (taken), nor whose it is (lease). Does not start anything.
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
from typing import Any

from engine.errors import TitanError
from engine.events import EventLog
from engine.planner.plan import Plan
from engine.settled import FILE, settled_by, write_settled
from engine.sources import Loaded, to_toml
from titancli import report
from titancli.launch.lease import cannot_write, just_taken
from titancli.launch.taken import Resumed, at_name, judge_taken
from titancli.monitor.follow import LAUNCHER_FILE, Launcher, folder_of_runs

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")
_EARLIER = "earlier-"
SLURM_LOG = "slurm.log"
"""What a job of Slurm says, every start of it at the end of the same file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is going to stand; `taken` is a folder that has to be moved aside first.

    `resumed` is the run that stands there already and is gone on with.
    """

    run: Path
    taken: bool = False
    resumed: Resumed | None = None


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
            at_name(loaded, "R102", message, "use letters, digits and any of . _ - + =, without a dot in front")
        )
    run = folder_of_runs(job.dump_folder) / job.name
    if not os.path.lexists(run):
        if resume:
            message = f"there is no run {job.name} in {job.dump_folder} to resume"
            raise TitanError(at_name(loaded, "R103", message, "leave --resume out to start it"))
        return Place(run=run)
    match judge_taken(loaded, run, resume=resume, overwrite=overwrite):
        case "complete":
            return run
        case "aside":
            return Place(run=run, taken=True)
        case resumed:
            return Place(run=run, resumed=resumed)


def _unnamed(runs: Path, stem: str, now_s: float) -> Path:
    """`<stem>-YYYYMMDD-HHMMSS`, with a counter where two launches meet in one second."""
    name = re.sub(r"[^A-Za-z0-9_.+=-]", "_", stem).lstrip(".-") or "titan"
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}"
    counted = (runs / (name if count == 1 else f"{name}-{count}") for count in range(1, 10_000))
    return next(run for run in counted if not os.path.lexists(run))


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
    In the folder of a run that is gone on with, what earlier launches have left stays, under other names.
    TitanError where the disk does not take it, or another launch came first; nothing is left of it then.
    """
    if place.resumed is not None:
        _go_on_in(place.run, place.resumed, loaded, plan, command, files=files)
        return ""
    partial = place.run.with_name(f".{place.run.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with _told(place.run):
            _make_folders(partial)
            _write(partial, loaded, plan, command, settled={}, files=files or {})
            if files is None:
                Launcher.this_process().write(partial)
            aside = _move_aside(place.run) if place.taken else ""
            _put_in_place(partial, place.run)
        return aside
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _go_on_in(
    run: Path, resumed: Resumed, loaded: Loaded, plan: Plan, command: str, *, files: Mapping[str, str] | None
) -> None:
    """Makes the folder of an earlier launch ready for another one."""
    with _told(run):
        if resumed.changed:
            shutil.copyfile(run / "config.toml", _numbered(run, "config-{}.toml"))
        # Somebody may have cleaned it up.
        _make_folders(run)
        keep_logs(run)
        if files is not None:
            # What the earlier launcher has said is not true of a job that waits.
            (run / LAUNCHER_FILE).unlink(missing_ok=True)
        _write(run, loaded, plan, command, settled=resumed.settled, files=files or {})


def _make_folders(run: Path) -> None:
    for folder in ("events", "logs", "checkpoints"):
        (run / folder).mkdir(parents=True, exist_ok=True)


def _write(
    folder: Path, loaded: Loaded, plan: Plan, command: str, *, settled: Mapping[str, Any], files: Mapping[str, str]
) -> None:
    """What workers and watchers read of a launch, each file whole or not at all."""
    texts = {
        "config.toml": to_toml(loaded.config),
        "plan.json": json.dumps(plan.to_json(), indent=1) + "\n",
        "command.txt": command + "\n",
        **files,
    }
    (folder / FILE).unlink(missing_ok=True)
    write_settled(folder, settled_by(loaded.config, plan) | dict(settled))
    for name, text in texts.items():
        partial = folder / f".{name}.{os.getpid()}"
        try:
            partial.write_text(text, "utf-8")
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)


def keep_logs(run: Path) -> None:
    """Puts what processes that are gone have written into a folder of its own: it must not be read as the new ones'."""
    logs = run / "logs"
    kept = re.compile(rf"{_EARLIER}\d+|launch(-node-\d+)?\.log|{re.escape(SLURM_LOG)}")
    written = [entry for entry in logs.iterdir() if not kept.fullmatch(entry.name)]
    if written:
        earlier = _numbered(logs, _EARLIER + "{}")
        earlier.mkdir()
        for entry in written:
            entry.rename(earlier / entry.name)


def start_over(run: Path, text: str, *, step: int | None) -> None:
    """Tells every reader of the events that all processes are started again, from `step` or from the beginning."""
    events = EventLog(run, 0)
    events.write("warning", message=text, restarts=True, step=step)
    events.close()


def _numbered(folder: Path, name: str) -> Path:
    """The first path of a name with a number that is free."""
    numbered = (folder / name.format(count) for count in range(1, 10_000))
    return next(path for path in numbered if not os.path.lexists(path))


def withdraw(run: Path, aside: str) -> None:
    """Takes a folder back in which nothing was ever started, and puts the one that it replaced where it stood."""
    if not any((run / "events").iterdir()):
        shutil.rmtree(run, ignore_errors=True)
    if aside:
        Path(aside).rename(run)


def _put_in_place(partial: Path, run: Path) -> None:
    try:
        partial.rename(run)
    except OSError as trouble:
        if trouble.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise just_taken(run) from trouble


def _move_aside(run: Path) -> str:
    free = _numbered(run.parent, run.name.replace("{", "{{").replace("}", "}}") + ".old-{}")
    run.rename(free)
    return str(free)


@contextmanager
def _told(run: Path) -> Iterator[None]:
    """Says as a finding what the disk does not take."""
    try:
        yield
    except OSError as trouble:
        raise cannot_write(run, trouble) from trouble
