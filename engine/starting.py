"""The beginning of a run: which checkpoint all ranks take, and how its state becomes theirs.

Knows the order of agreeing, loading and what has to follow. Does not know which checkpoint that is
(checkpoint/beginning.py), nor how its tensors are read (checkpoint/store.py).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from engine.build import Built
from engine.checkpoint import places
from engine.checkpoint.agreed import group_of_all, on_all, on_first, reason
from engine.checkpoint.beginning import Loading, checkpoints_of, look_for
from engine.checkpoint.committed import put_aside
from engine.checkpoint.store import load
from engine.config import Config
from engine.data.index import Position
from engine.errors import Finding, TitanError
from engine.exchange.reading import read_folder
from engine.parallel.mesh import COLLECTIVE_MARGIN_S
from engine.planner.plan import Plan
from engine.settled import read_settled, write_settled
from engine.state import set_random_states, set_updates, state_of, weights_of

_SEEN_WITHIN_S = 10.0
_LOAD_STEP = "checkpoint.load_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What all ranks of a run begin with, and warnings; `group` is theirs where checkpoints are read or written."""

    loading: Loading | None = None
    warnings: tuple[Finding, ...] = ()
    group: dist.ProcessGroup | None = None

    @property
    def position(self) -> Position:
        """The step that the run goes on after, and what it has read by then."""
        return Position() if self.loading is None else Position(step=self.loading.step, samples=self.loading.samples)

    @property
    def resumed_from(self) -> int | None:
        """The step of its own that the run goes on after; None where it begins anew."""
        return self.loading.step if self.loading is not None and self.loading.what == "all" else None


def agree(config: Config, plan: Plan, *, run: Path | None) -> Beginning:
    """What a run begins with, the same on all ranks, which call it at once; TitanError on all of them or on none.

    Before, that the folder of its checkpoints can be written, and is one and the same for all of them (D636).
    """
    if not config.checkpoint.enable and config.checkpoint.initial_load_path is None:
        return Beginning()
    # A rank that is stuck is named (engine/pulse) before the others give up on it.
    group = group_of_all(config.comm.save_timeout_seconds + COLLECTIVE_MARGIN_S)
    if config.checkpoint.enable:
        assert run is not None, "checkpoints are kept in a run folder"
        _require_one_folder(checkpoints_of(config, run), group)
    loading, warnings = on_first(group, "looking for a checkpoint", lambda: look_for(config, plan, run))
    return Beginning(loading=loading, warnings=warnings, group=group)


def load_into(built: Built, loading: Loading, *, group: dist.ProcessGroup) -> None:
    """Loads this rank's share, whatever layout saved it; every rank calls it at once.

    Random states are those of a rank, so that they are loaded where as many ranks saved them.
    """
    if loading.what == "huggingface":
        shape = built.parts[0].shape
        on_all(group, f"loading {loading.path}", lambda: read_folder(weights_of(built), loading.path, shape))
    elif loading.what == "weights":
        load(weights_of(built), loading.path, group=group)
    else:
        assert loading.manifest is not None, "a checkpoint of the run's own has a manifest"
        state = state_of(built)
        same_ranks = loading.manifest.layout.get("world_size") == dist.get_world_size()
        same_device = loading.manifest.layout.get("device") == built.device.type
        random = {name: value for name, value in state.items() if name.startswith("random.")}
        if not (same_ranks and same_device):
            state = {name: value for name, value in state.items() if name not in random}
        load(state, loading.path, group=group)
        if same_ranks and same_device:
            set_random_states(random, built.device)
        set_updates(built, loading.manifest.updates)
    built.weights_changed()


def go_back(config: Config, loading: Loading, *, run: Path, group: dist.ProcessGroup) -> tuple[Finding, ...]:
    """Puts the run's own checkpoints aside that are later than the one it was loaded from; D637, a warning, says so.

    What is saved from here on is another history. A step that was asked for is then settled: when the run is started
    again, it goes on from its newest one.
    """

    def work() -> tuple[str, ...]:
        names = put_aside(checkpoints_of(config, run), after=loading.step)
        if config.checkpoint.load_step != -1:
            write_settled(run, read_settled(run) | {_LOAD_STEP: -1})
        return names

    names = on_first(group, f"going back to {loading.path}", work)
    if not names:
        return ()
    message = f"the run goes back to step {loading.step}, and its later checkpoints are kept as {', '.join(names)}"
    fix = "delete them once they are not wanted any more: they are neither loaded nor deleted by the run"
    return (Finding(rule="D637", severity="warning", key=_LOAD_STEP, message=message, fix=fix),)


def _require_one_folder(folder: Path, group: dist.ProcessGroup) -> None:
    """D636 where a rank cannot write the folder, or has another one of its name: found now, not at the first save."""
    name = on_first(group, f"making {folder}", lambda: _leave_mark(folder))
    try:
        on_all(group, f"looking into {folder}", lambda: _require_mark(folder / name))
    finally:
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):
                places.unlink(folder / name)


def _leave_mark(folder: Path) -> str:
    mark = folder / f".seen-by-all.{uuid.uuid4().hex}"
    try:
        places.make_folder(folder)
        places.put(mark, b"")
    except OSError as error:
        fix = "set it, or job.dump_folder, to one that can be written"
        raise TitanError(
            _error(f"{folder} cannot be written on {os.uname().nodename}: {reason(error)}", fix)
        ) from error
    return mark.name


def _require_mark(mark: Path) -> None:
    """A network file system may show a new file late."""
    end_s = time.monotonic() + _SEEN_WITHIN_S
    host, folder = os.uname().nodename, mark.parent
    while not places.exists(mark):
        if time.monotonic() > end_s:
            message = f"rank {dist.get_rank()} on {host} does not see in {folder} what rank 0 has written there"
            fix = "set job.dump_folder to a folder that all nodes share: checkpoints are written and read by all ranks"
            raise TitanError(_error(message, fix))
        with contextlib.suppress(OSError):
            places.names_in(folder)
        time.sleep(0.1)
    if (why := _why_not_written(mark)) is not None:
        message = f"{folder} cannot be written by rank {dist.get_rank()} on {host}{why}"
        raise TitanError(_error(message, "let it be written"))


def _why_not_written(mark: Path) -> str | None:
    """Why this rank cannot write beside a mark; None where it can. A store says so only of a write."""
    if not places.is_remote(mark):
        return None if os.access(mark.parent, os.W_OK) else ""
    own = mark.with_name(f"{mark.name}.{dist.get_rank()}")
    try:
        places.put(own, b"")
        places.unlink(own)
    except OSError as error:
        return f": {reason(error)}"
    return None


def _error(message: str, fix: str) -> Finding:
    return Finding(rule="D636", severity="error", key="checkpoint.folder", message=message, fix=fix)
