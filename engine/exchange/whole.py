"""Folders that get their name once they are whole, and what may be replaced by one.

Knows names. Does not know what is written into them. A process that is killed leaves a folder that begins with a dot
and ends in `.partial`; whoever writes to the same name again deletes it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine.checkpoint.places import sync
from engine.errors import EXIT_RUN_FAILED, Finding, TitanError


class WorkFailed(TitanError):
    """What was asked for is sound, and doing it failed."""

    @property
    def exit_code(self) -> int:
        """As of a run that failed."""
        return EXIT_RUN_FAILED


def partial_of(output: Path) -> Path:
    """The folder until it is whole."""
    return output.with_name(f".{output.name}.partial")


def begin_whole(output: Path, *, force: bool, mark: str, needed_bytes: int) -> Path:
    """Makes the folder to write into, and gives it; TitanError D654 where the name is taken, or the disk too full.

    `force` replaces a folder that has a file `mark` or nothing in it, and no other: a mistyped name costs nobody a
    home.
    """
    if os.path.lexists(output):
        if not force:
            raise refused(f"{output} is there already", "name another folder, or use --force to replace it")
        if not output.is_dir() or output.is_symlink() or (any(output.iterdir()) and not (output / mark).is_file()):
            raise refused(f"{output} is not replaced: it holds no {mark}", "name another folder")
    partial = partial_of(output)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise refused(f"{partial} cannot be made: {reason}", "name a folder that can be written") from error
    free_bytes = shutil.disk_usage(partial).free
    if needed_bytes > free_bytes:
        give_up(output)
        message = f"{output} takes {needed_bytes:,} bytes, and {free_bytes:,} are free there"
        raise refused(message, "make room, or name a folder on a larger disk")
    return partial


def make_whole(output: Path) -> None:
    """Gives the folder its name; one that had it is put aside first, and deleted after."""
    partial, aside = partial_of(output), None
    sync(partial)
    if os.path.lexists(output):
        aside = output.with_name(f".{output.name}.replaced.{os.getpid()}")
        output.rename(aside)
    partial.rename(output)
    sync(output.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def give_up(output: Path) -> None:
    """Deletes what was written."""
    shutil.rmtree(partial_of(output), ignore_errors=True)


def refused(message: str, fix: str) -> TitanError:
    """D654: a folder is not written to."""
    return TitanError(_finding(message, fix))


def unwritten(path: Path, error: OSError) -> WorkFailed:
    """D654: writing failed on the way."""
    reason = (error.strerror or str(error)).lower()
    return WorkFailed(_finding(f"{path} cannot be written: {reason}", "make room, or name another folder"))


def _finding(message: str, fix: str) -> Finding:
    return Finding(rule="D654", severity="error", key="checkpoint.last_save_in_hf", message=message, fix=fix)
