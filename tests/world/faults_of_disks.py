"""Faults of disks and of what lies on them: no room, no permission, a checkpoint that was cut.

Small file systems are mounted for the first two, which takes root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_row import fault, killed_after_saves
from fault_trial import Trial
from faulty import Launch

from engine.checkpoint.committed import MANIFEST, step_folder

_ROOM_BYTES = 64 << 20


@contextmanager
def _mounted(folder: Path, *, size_bytes: int, options: str = "") -> Iterator[None]:
    """A file system of its own of so many bytes at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}{options}", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """Takes the room that is left but for so many bytes; gives the file that has it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        if leave_bytes:
            os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(folder).free - leave_bytes))
            return ballast
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return ballast


@fault("build", "first step", "mid-step", "saving", needs_root=True)
def disk_full_while_saving(trial: Trial) -> None:
    """The disk is full while a checkpoint is saved."""
    disk = trial.folder / "disk"
    saves = trial.random.uniform(0.1, 1.9)
    room_bytes = int(trial.undisturbed.checkpoint_bytes * saves)
    with _mounted(disk, size_bytes=_ROOM_BYTES):
        launch = trial.launch(dump_folder=disk)
        trial.reach(launch)
        ballast = _fill(disk, leave_bytes=room_bytes)
        trial.struck(launch)
        trial.expect(launch, {1}, "no space left on device", "step-", limit_s=90)
        ballast.unlink()
        trial.expect_resumed(launch, dump_folder=disk)
        trial.close()


@fault("build", "first step", "mid-step", "end", needs_root=True)
def disk_full_for_events(trial: Trial) -> None:
    """The disk is full for events and logs."""
    disk = trial.folder / "disk"
    with _mounted(disk, size_bytes=_ROOM_BYTES):
        launch = trial.launch(dump_folder=disk)
        trial.reach(launch)
        ballast = _fill(disk)
        trial.struck(launch)
        code = trial.expect(launch, {0, 1} if trial.moment == "end" else {1}, limit_s=90)
        if code == 1 and not any(word in launch.tail.lower() for word in ("no space left", "disk", "full")):
            trial.problem(f"that the disk is full is not said: {launch.tail}")
        ballast.unlink()
        trial.expect_resumed(launch, dump_folder=disk)
        trial.close()


@fault("start-up", "mid-step", needs_root=True)
def checkpoints_not_writable(trial: Trial) -> None:
    """The folder of the checkpoints cannot be written."""
    launch = trial.launch()
    launch.until(lambda: (launch.run / "checkpoints").is_dir())
    if trial.moment != "start-up":
        trial.reach_moment(launch, trial.moment)
    with _mounted(launch.run / "checkpoints", size_bytes=_ROOM_BYTES, options=",ro"):
        # Before the first step it is the config that is wrong; afterwards the run fails.
        trial.expect(
            launch, {2} if trial.moment == "start-up" else {1}, "read-only file system", "checkpoints", limit_s=90
        )
    trial.expect_resumed(launch)


@fault("start-up")
def file_where_checkpoints_belong(trial: Trial) -> None:
    """A file stands where the checkpoints belong."""
    launch = trial.launch()
    launch.until(lambda: (launch.run / "checkpoints").is_dir())
    (launch.run / "checkpoints").rmdir()
    (launch.run / "checkpoints").touch()
    trial.expect(launch, {1, 2}, "checkpoints", limit_s=90)
    (launch.run / "checkpoints").unlink()
    trial.expect_resumed(launch)


def _newest(launch: Launch) -> Path:
    newest = max(launch.committed())
    return launch.run / "checkpoints" / step_folder(newest)


def _expect_older_or_refused(trial: Trial, launch: Launch, damaged: Path) -> None:
    """The damaged one is named, and either the one before it is loaded or nothing is started until it is taken away."""
    trial.kept = {step: files for step, files in launch.committed().items() if step_folder(step) != damaged.name}
    began_s = time.monotonic()
    resumed = trial.launch("--resume")
    code = resumed.wait(180)
    trial.seconds = time.monotonic() - began_s
    if damaged.name not in resumed.err + resumed.out:
        trial.problem(f"{damaged.name} is not named: {resumed.out[-500:]} {resumed.tail}")
    if "Traceback" in resumed.err:
        trial.problem(f"a traceback: {resumed.tail}")
    trial.expect_nothing_left(resumed)
    trial.expect_kept(resumed)
    if code == 0:
        trial.expect_losses(resumed)
    else:
        shutil.rmtree(damaged)
        trial.expect_resumed(launch)


def _cut(path: Path, trial: Trial) -> None:
    os.truncate(path, trial.random.randrange(path.stat().st_size))


@fault("saving")
def shard_cut(trial: Trial) -> None:
    """A truncated checkpoint: a shard."""
    launch = killed_after_saves(trial, trial.random.randint(2, 4))
    damaged = _newest(launch)
    _cut(trial.random.choice(sorted(damaged.glob("*.distcp"))), trial)
    _expect_older_or_refused(trial, launch, damaged)


@fault("saving")
def manifest_cut(trial: Trial) -> None:
    """A truncated checkpoint: the manifest."""
    launch = killed_after_saves(trial, trial.random.randint(2, 4))
    damaged = _newest(launch)
    _cut(damaged / MANIFEST, trial)
    _expect_older_or_refused(trial, launch, damaged)


@fault("saving")
def metadata_gone(trial: Trial) -> None:
    """A truncated checkpoint: .metadata is gone."""
    launch = killed_after_saves(trial, trial.random.randint(2, 4))
    damaged = _newest(launch)
    (damaged / ".metadata").unlink()
    _expect_older_or_refused(trial, launch, damaged)
