"""Which checkpoints of a folder exist: those whose manifest is there and whole.

Knows the names of step folders and of the manifest, which step is loaded, and which may be deleted. Does not know what
a checkpoint holds, and imports no torch: `titan validate` asks here too.

`step-100/` is committed once `manifest.json` stands in it. Shards come first, then torch's own `.metadata`, then what
else a run goes on from; the manifest is renamed into its place after all of them, so it is there whole or not at all.
`.metadata` cannot be that mark: it says that the tensors are written, and nothing of the data's position or the layout.
A manifest of 0 bytes, or one cut short, is what a machine that lost its power can leave: no mark either.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from engine.errors import Finding, TitanError
from engine.legal import choice

MANIFEST = "manifest.json"
"""The file whose being there whole makes a folder a checkpoint."""

_MOST_OFFERED = 5
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The steps of a folder of checkpoints, ascending: those that are committed, and those whose saving never ended."""

    folder: Path
    committed: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()

    @property
    def newest(self) -> int | None:
        """The newest committed step."""
        return self.committed[-1] if self.committed else None

    @property
    def torn(self) -> tuple[int, ...]:
        """Steps after the newest committed one whose saving never ended."""
        newest = -1 if self.newest is None else self.newest
        return tuple(step for step in self.unfinished if step > newest)


def step_folder(step: int) -> str:
    """The name of the folder of a step's checkpoint."""
    return f"step-{step}"


def is_committed(checkpoint: Path) -> bool:
    """Whether a folder holds a checkpoint: its manifest is there and is one JSON object."""
    try:
        return isinstance(json.loads((checkpoint / MANIFEST).read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def checkpoints_in(folder: Path) -> Checkpoints:
    """The checkpoints of a folder, none where it is not there; TitanError D622 where it cannot be listed."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return Checkpoints(folder=folder)
    except OSError as error:
        # Not to be taken for an empty one: a run would begin anew beside its own checkpoints.
        message = f"the checkpoints of {folder} cannot be listed: {(error.strerror or str(error)).lower()}"
        raise TitanError(_error("D622", "checkpoint.folder", message, "make it a folder that can be read")) from error
    matches = (_STEP.fullmatch(name) for name in names)
    steps = sorted(int(match[1]) for match in matches if match and os.path.isdir(folder / match[0]))
    committed = tuple(step for step in steps if is_committed(folder / step_folder(step)))
    return Checkpoints(
        folder=folder, committed=committed, unfinished=tuple(step for step in steps if step not in committed)
    )


def step_to_load(found: Checkpoints, load_step: int) -> int | None:
    """The step that a run goes on from: `load_step`, or with -1 the newest committed one; None where there is none.

    TitanError D621 where the step that is asked for is not committed.
    """
    if load_step == -1:
        return found.newest
    if load_step in found.committed:
        return load_step
    if load_step in found.unfinished:
        what = f"{step_folder(load_step)} has no whole {MANIFEST}, its saving never ended"
    else:
        what = f"there is no {step_folder(load_step)}"
    message = f"load_step = {load_step} is no committed checkpoint of {found.folder}: {what}"
    fix = "set it to -1: none is committed there, and the run begins at its first step"
    if found.committed:
        fix = f"set it to {choice(found.committed[-_MOST_OFFERED:])}, or to -1 for the newest"
    raise TitanError(_error("D621", "checkpoint.load_step", message, fix))


def torn_finding(found: Checkpoints) -> Finding:
    """D620, a warning, where steps were begun after the newest committed one."""
    assert found.torn, "where every step after the newest was saved to its end there is nothing to warn of"
    names = ", ".join(step_folder(step) for step in found.torn)
    goes_on = (
        "there is no committed one" if found.newest is None else f"the newest committed one is step {found.newest}"
    )
    return Finding(
        rule="D620",
        severity="warning",
        key="checkpoint.load_step",
        message=f"{names} of {found.folder} was never saved to its end, and {goes_on}",
        fix=f"nothing needs to be done: what has no whole {MANIFEST} is not loaded",
    )


def steps_to_delete(found: Checkpoints, keep_latest_k: int, *, writing: Collection[int] = ()) -> tuple[int, ...]:
    """Steps that are not to be kept any longer, ascending; 0 keeps every committed one.

    Only committed steps count as kept, so the newest of them stays until a newer one is committed, whatever is being
    written. Steps whose saving never ended go once a newer one is committed, except those in `writing`.
    """
    old = found.committed[:-keep_latest_k] if keep_latest_k else ()
    debris = (step for step in found.unfinished if step not in found.torn)
    return tuple(sorted(step for step in (*old, *debris) if step not in writing))


def _error(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix)
