"""What a run begins with: a checkpoint of its own, one that it was given, or nothing.

Knows the order, and that what is not whole or not of this model is not loaded. Does not know how tensors are read
(store.py), and imports no torch: `titan validate` and `titan launch` ask here before anything starts.

Of its own checkpoint a run takes all: weights, optimizer, counts, its place in the data. Of one that it was given in
checkpoint.initial_load_path it takes the weights alone, and begins at its first step with a fresh optimizer, as the
first step of another run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engine.checkpoint import places
from engine.checkpoint.committed import (
    MANIFEST,
    Checkpoints,
    checkpoints_in,
    damage,
    is_committed,
    require_names_free,
    step_folder,
    whole_step_to_load,
)
from engine.checkpoint.manifest import Manifest, read_manifest, refusals
from engine.config import Config
from engine.errors import Finding, TitanError
from engine.huggingface import files as huggingface
from engine.planner.plan import Plan

_INITIAL = "checkpoint.initial_load_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A checkpoint that a run begins with: all of its own state, the weights of another run's, or Hugging Face's.

    `manifest`: that of its own, None of any weights alone.
    """

    path: Path
    manifest: Manifest | None
    what: Literal["all", "weights", "huggingface"]

    @property
    def step(self) -> int:
        """The step that the run goes on after."""
        return 0 if self.manifest is None else self.manifest.step

    @property
    def samples(self) -> int:
        """What the run has read by then, over all data ranks."""
        return 0 if self.manifest is None else self.manifest.samples


def checkpoints_of(config: Config, run: Path) -> Path:
    """The folder in which a run keeps its checkpoints; TitanError D639 for a URL that cannot be reached from here."""
    return places.place(config.checkpoint.folder, key="checkpoint.folder", within=run)


def look_for(config: Config, plan: Plan, run: Path | None) -> tuple[Loading | None, tuple[Finding, ...]]:
    """What a run begins with, and warnings; TitanError where what it asks for cannot be loaded into it."""
    checkpoint = config.checkpoint
    warnings: tuple[Finding, ...] = ()
    if checkpoint.enable:
        assert run is not None, "checkpoints are kept in a run folder"
        folder = checkpoints_of(config, run)
        found = checkpoints_in(folder)
        step, warnings = whole_step_to_load(found, checkpoint.load_step)
        require_names_free(found, after=step or 0, until=config.training.steps)
        if step is not None:
            return loadable(folder / step_folder(step), config, plan, what="all"), warnings
    if checkpoint.initial_load_path is not None and checkpoint.initial_load_in_hf:
        return huggingface_weights(checkpoint.initial_load_path, plan), warnings
    if checkpoint.initial_load_path is not None:
        path, more = initial_checkpoint(checkpoint.initial_load_path)
        return loadable(path, config, plan, what="weights"), (*warnings, *more)
    return None, warnings


def loadable(path: Path, config: Config, plan: Plan, *, what: Literal["all", "weights"]) -> Loading:
    """A committed checkpoint as what a run begins with; TitanError D631 to D633 where it cannot be."""
    manifest = read_manifest(path)
    if what == "all" and path.name != step_folder(manifest.step):
        message = f"{path / MANIFEST} is that of step {manifest.step}"
        fix = "give the folder its own name back, or name its weights in checkpoint.initial_load_path"
        raise TitanError(replace(_error("D631", message, fix), key="checkpoint.load_step"))
    wrong = refusals(manifest, config, plan, path=path, loads=what)
    if wrong:
        raise TitanError(*wrong)
    return Loading(path=path, manifest=manifest if what == "all" else None, what=what)


def huggingface_weights(written: str, plan: Plan) -> Loading:
    """A folder of safetensors as what a run begins with; TitanError D650 to D652 where it is of another model."""
    path = huggingface.folder_of(written)
    wrong = huggingface.refusals(path, plan.model)
    if wrong:
        raise TitanError(*wrong)
    return Loading(path=path, manifest=None, what="huggingface")


def initial_checkpoint(written: str) -> tuple[Path, tuple[Finding, ...]]:
    """The checkpoint that initial_load_path names, itself or the newest whole one in it, and warnings.

    TitanError D624 where there is none, D630 where it is damaged.
    """
    path = places.place(written, key=_INITIAL)
    try:
        is_one = is_committed(path)
        inside = checkpoints_in(path) if not is_one and places.is_folder(path) else Checkpoints(folder=path)
    except TitanError as mistake:
        raise TitanError(*(replace(finding, key=_INITIAL) for finding in mistake.findings)) from mistake
    if is_one:
        if harm := damage(path):
            message = f"initial_load_path = {written} is damaged: {harm}"
            raise TitanError(_error("D630", message, "give the file back, or name another checkpoint"))
        return path, ()
    if inside.newest is None:
        names = places.names_in(path) if places.is_folder(path) else []
        what = f"it has no whole {MANIFEST}, nor a step that has" if places.exists(path) else "it is not there"
        fix = "name a step that was saved to its end"
        if any(name.endswith(".safetensors") for name in names):
            fix = "set initial_load_in_hf to true"
        elif "checkpoints" in names:
            fix = f"name the checkpoints of that run: {path / 'checkpoints'}"
        raise TitanError(_error("D624", f"initial_load_path = {written} is no committed checkpoint: {what}", fix))
    try:
        step, found = whole_step_to_load(inside, -1)
    except TitanError as mistake:
        raise TitanError(*(replace(finding, key=_INITIAL) for finding in mistake.findings)) from mistake
    assert step is not None, "where one is committed one is loaded, or none is whole"
    return path / step_folder(step), tuple(replace(finding, key=_INITIAL) for finding in found)


def _error(rule: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="error", key=_INITIAL, message=message, fix=fix)
