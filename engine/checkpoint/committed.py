"""Which checkpoints of a folder exist: those whose manifest is there and whole.

Knows the names of step folders and of the manifest, which step is loaded, which may be deleted, and which are put
aside. Does not know what a checkpoint holds, and imports no torch: `titan validate` asks here too.

`step-100/` is committed once `manifest.json` stands in it. Shards come first, then torch's own `.metadata`, then what
else a run goes on from; the manifest is renamed into its place after all of them, so it is there whole or not at all.
`.metadata` cannot be that mark: it says that the tensors are written, and nothing of the data's position or the layout.
A manifest of 0 bytes, or one cut short, is what a machine that lost its power can leave: no mark either. In an object
store nothing is renamed: an object is there whole once its PUT has ended, and that of the manifest is the last.

A manifest also says how many bytes each file of its folder has. Where one of them has gone or was cut short since, the
checkpoint is damaged: it was committed, and is not loaded.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint import places
from engine.errors import Finding, TitanError
from engine.legal import choice

MANIFEST = "manifest.json"
"""The file whose being there whole makes a folder a checkpoint."""
FILES = "files"
"""The key of the manifest under which the bytes of every other file of the folder stand, by name."""

_MOST_OFFERED = 5
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)
_ASIDE = ".aside-"
_PUT_ASIDE = re.compile(_STEP.pattern + re.escape(_ASIDE) + "([1-9][0-9]{0,3})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The steps of a folder of checkpoints, ascending: those that are committed, and those whose saving never ended.

    `taken`: steps whose name something else has, which no save replaces: a file, or a link to no checkpoint.
    """

    folder: Path
    committed: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()

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
    return written_in(checkpoint) is not None


def written_in(checkpoint: Path) -> dict[str, Any] | None:
    """What the manifest of a folder says; None where it is not there, or not one JSON object.

    TitanError D622 where it is there and cannot be read.
    """
    (found,) = places.read_all([checkpoint / MANIFEST])
    return _told(checkpoint, found)


def _told(checkpoint: Path, found: bytes | OSError) -> dict[str, Any] | None:
    """What the bytes of a manifest say, or the reason why there are none."""
    if isinstance(found, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return None
    if isinstance(found, OSError):
        # It may be whole: a run would pass it over, and then delete it as what a save has left.
        message = f"{checkpoint / MANIFEST} cannot be read: {(found.strerror or str(found)).lower()}"
        raise TitanError(_error("D622", "checkpoint.folder", message, "let it be read, or move it away")) from found
    try:
        written = json.loads(found)
    except (ValueError, RecursionError):
        return None
    return written if isinstance(written, dict) else None


def damage(checkpoint: Path) -> str:
    """What a committed checkpoint lacks of the files that its manifest names, in words; empty where it is whole."""
    files = (written_in(checkpoint) or {}).get(FILES)
    if not isinstance(files, dict):
        return ""
    try:
        # A store is asked once: each question takes it many milliseconds.
        there = places.sizes_in(checkpoint) if places.is_remote(checkpoint) else None
    except OSError as error:
        return f"it cannot be looked at: {str(error).lower()}"
    for name, size in files.items():
        try:
            found = os.stat(checkpoint / name).st_size if there is None else there.get(name)
        except FileNotFoundError:
            found = None
        except (OSError, ValueError) as error:
            words = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return f"its file {name!r} cannot be looked at: {words.lower()}"
        if found is None:
            return f"its file {name} is not there"
        if found != size:
            written = f"{size:,} were written" if isinstance(size, int) else f"its manifest says {size!r}"
            return f"its file {name} has {found:,} bytes, and {written}"
    return ""


def checkpoints_in(folder: Path) -> Checkpoints:
    """The checkpoints of a folder, none where it is not there; TitanError D622 where they cannot be told."""
    try:
        names = places.names_in(folder)
    except FileNotFoundError:
        return Checkpoints(folder=folder)
    except OSError as error:
        # Not to be taken for an empty one: a run would begin anew beside its own checkpoints.
        message = f"the checkpoints of {folder} cannot be listed: {(error.strerror or str(error)).lower()}"
        raise TitanError(_error("D622", "checkpoint.folder", message, "make it a folder that can be read")) from error
    matches = (_STEP.fullmatch(name) for name in names)
    steps = sorted(int(match[1]) for match in matches if match)
    paths = [folder / step_folder(step) for step in steps]
    manifests = places.read_all([path / MANIFEST for path in paths])
    told = zip(steps, paths, manifests, strict=True)
    committed = tuple(step for step, path, manifest in told if _told(path, manifest) is not None)
    others = [step for step in steps if step not in committed]
    unfinished = tuple(step for step in others if _is_own_folder(folder / step_folder(step)))
    taken = tuple(step for step in others if step not in unfinished)
    return Checkpoints(folder=folder, committed=committed, unfinished=unfinished, taken=taken)


def _is_own_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one, which is somebody's own."""
    return places.is_folder(path) and not places.is_link(path)


def require_names_free(found: Checkpoints, *, after: int, until: int) -> None:
    """TitanError D638 where a run from `after` to `until` could not save, as the name of a step is taken."""
    for step in found.taken:
        if after < step <= until:
            path = found.folder / step_folder(step)
            what = "a link to no checkpoint" if places.is_link(path) else "not a folder"
            message = f"{path} is {what}, and the checkpoint after step {step} is to have that name"
            raise TitanError(_error("D638", "checkpoint.folder", message, "move it away, or set another folder"))


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


def whole_step_to_load(found: Checkpoints, load_step: int) -> tuple[int | None, tuple[Finding, ...]]:
    """The step that a run goes on from, as `step_to_load`, none of whose files is damaged; and warnings.

    With -1 a damaged one is passed over for the newest that is whole. TitanError D621 where the step that is asked for
    is not committed, D630 where it is damaged or all are: a run never begins anew beside its own checkpoints.
    """
    step = step_to_load(found, load_step)
    warnings = (torn_finding(found),) if found.torn and load_step == -1 else ()
    if step is None:
        return None, warnings
    passed_over: list[str] = []
    for candidate in (load_step,) if load_step != -1 else reversed(found.committed):
        harm = damage(found.folder / step_folder(candidate))
        if not harm:
            return candidate, (*warnings, *(_damaged(found, passed_over, goes_on=candidate) if passed_over else ()))
        passed_over.append(f"{step_folder(candidate)} is damaged: {harm}")
    key = "checkpoint.load_step"
    message = f"{passed_over[0]} (in {found.folder})"
    fix = "set it to -1 for the newest whole one, or give the file back"
    if load_step == -1:
        message = f"no checkpoint of {found.folder} is whole: {passed_over[0]}"
        fix = "give the file back, or start the run anew under another job.name"
    raise TitanError(_error("D630", key, message, fix))


def _damaged(found: Checkpoints, passed_over: list[str], *, goes_on: int) -> tuple[Finding]:
    return (
        Finding(
            rule="D630",
            severity="warning",
            key="checkpoint.load_step",
            message=f"{'; '.join(passed_over)} (in {found.folder})",
            fix=f"nothing needs to be done: the newest whole one, step {goes_on}, is loaded",
        ),
    )


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


def delete(checkpoint: Path) -> None:
    """Deletes a checkpoint: its manifest first, so that what a crash leaves of it is not taken for one.

    OSError where it cannot, and of a link, behind which is somebody's own.
    """
    if places.is_link(checkpoint):
        raise OSError(errno.ENOTSUP, "it is a link", str(checkpoint))
    places.unlink(checkpoint / MANIFEST)
    places.remove_tree(checkpoint)


def put_aside(folder: Path, *, after: int) -> tuple[str, ...]:
    """Renames the committed checkpoints later than a step, so that they are neither loaded nor deleted; new names.

    A run that goes back to `after` writes other ones of those steps.
    """
    later = (step for step in checkpoints_in(folder).committed if step > after)
    return tuple(keep_aside(folder / step_folder(step)) for step in later)


def aside_in(folder: Path) -> tuple[str, ...]:
    """Names under which checkpoints of a folder were put aside, by step; OSError where it cannot be listed."""
    matches = (_PUT_ASIDE.fullmatch(name) for name in places.names_in(folder))
    return tuple(match[0] for match in sorted(filter(None, matches), key=lambda match: (int(match[1]), int(match[2]))))


def keep_aside(checkpoint: Path) -> str:
    """Gives a checkpoint a name under which nothing looks for it; returns that.

    A store copies it, and it is there under both names for a while: where that is cut short, under its own.
    """
    names = (checkpoint.with_name(f"{checkpoint.name}{_ASIDE}{count}") for count in range(1, 10_000))
    free = next(name for name in names if not places.exists(name))
    if places.is_remote(checkpoint):
        places.copy_tree(checkpoint, free)
        delete(checkpoint)
    else:
        checkpoint.rename(free)
    return free.name


def _error(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix)
