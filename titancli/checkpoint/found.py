"""Which checkpoints a person means: those of a run, of a folder or URL that holds some, or a single one.

Knows a run's config. Does not know what a checkpoint holds, nor how they are shown (ls, verify).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from engine.checkpoint import places
from engine.checkpoint.committed import (
    Checkpoints,
    aside_in,
    checkpoints_in,
    is_committed,
    steps_to_delete,
    whole_step_to_load,
)
from engine.checkpoint.places import place
from engine.errors import TitanError
from titancli import report
from titancli.launch.kept import asked_for, checkpoints_of_run, keeps
from titancli.monitor.follow import Launcher, find_run
from titancli.monitor.signs import is_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A folder of checkpoints and what stands in it, with the run that they are of where that is known.

    `only`: the name of the one that was asked for. `keep_latest_k`: None where no run's config says it. `takes`: the
    step that `titan launch --resume` goes on after, None where it begins anew or is refused. `is_running`: whether
    somebody trains that run now.
    """

    own: Checkpoints
    aside: tuple[str, ...] = ()
    only: str | None = None
    run: Path | None = None
    keep_latest_k: int | None = None
    takes: int | None = None
    is_running: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self.own.folder

    @property
    def prunes(self) -> tuple[int, ...]:
        """Steps that the next save deletes once it is committed."""
        if self.keep_latest_k is None:
            return ()
        # A run that goes back puts the later ones aside before it saves.
        standing = tuple(step for step in self.own.committed if self.takes is None or step <= self.takes)
        if not self.own.committed:
            return ()
        after = max(*self.own.committed, *self.own.unfinished, -1) + 1
        found = replace(self.own, committed=(*standing, after))
        return steps_to_delete(found, self.keep_latest_k)


def find(name: str | None, dump_folder: str) -> Found:
    """What is meant by a run folder, the name of a run, or a path or URL of checkpoints; without: the newest run.

    TitanError U110 where it is not there, D622 where it cannot be listed, D639 where a URL cannot be reached.
    """
    path = None if name is None else place(name, key="")
    if path is not None and not places.exists(path / "config.toml"):
        if is_committed(path):
            return _of_folder(path.parent, only=path.name)
        if places.is_folder(path) and (checkpoints_in(path) != Checkpoints(folder=path) or aside_in(path)):
            return _of_folder(path)
        if places.is_remote(path):
            raise TitanError(report.error("U110", f"there is no checkpoint in {path}", "name a folder that holds some"))
    return _of_run(find_run(name, dump_folder))


def _of_folder(folder: Path, *, only: str | None = None) -> Found:
    """The checkpoints of a folder; of a run's own, as that run has them."""
    run = folder.parent
    if not places.is_remote(folder) and (run / "config.toml").is_file() and checkpoints_of_run(run) == folder:
        return replace(_of_run(run), only=only)
    own = checkpoints_in(folder)
    return Found(own=own, aside=aside_in(folder), only=only, takes=_taken(own, -1))


def _of_run(run: Path) -> Found:
    folder = checkpoints_of_run(run)
    own = checkpoints_in(folder)
    aside = aside_in(folder) if places.is_folder(folder) else ()
    return Found(
        own=own,
        aside=aside,
        run=run,
        keep_latest_k=keeps(run),
        takes=_taken(own, asked_for(run)),
        is_running=is_held(run, Launcher.read(run)),
    )


def _taken(own: Checkpoints, load_step: int) -> int | None:
    try:
        return whole_step_to_load(own, load_step)[0]
    except TitanError:
        # It is refused: every row says what is wrong with it.
        return None
