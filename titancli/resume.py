"""The checkpoint that a run of a config would go on from, looked at before it is started.

Knows which folders hold it. Does not know which of them is loaded, nor what it must have in common with the run
(engine/checkpoint/beginning).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.checkpoint import places
from engine.checkpoint.beginning import checkpoints_of, initial_checkpoint, loadable
from engine.checkpoint.committed import (
    Checkpoints,
    checkpoints_in,
    require_names_free,
    step_folder,
    whole_step_to_load,
)
from engine.checkpoint.manifest import changes
from engine.errors import Finding, Severity, TitanError
from engine.huggingface.files import folder_of, refusals
from engine.planner.plan import Plan
from engine.sources import Loaded, locate
from titancli.monitor.follow import folder_of_runs

_LOAD_STEP, _INITIAL = "checkpoint.load_step", "checkpoint.initial_load_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run begins: its own checkpoints that are here, and the one that is loaded.

    `step` is that of a checkpoint of its own, `path` the checkpoint; both are None where it begins anew. `is_reached`:
    whether this Python has what reaches the folder of its own, which stands under a URL.
    """

    own: Checkpoints
    is_reached: bool = True
    step: int | None = None
    path: Path | None = None

    @property
    def standing(self) -> Checkpoints:
        """Those of its own that the run keeps and deletes: it puts later ones aside, and they stay on the disk."""
        if self.step is None:
            return self.own
        return replace(self.own, committed=tuple(step for step in self.own.committed if step <= self.step))

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.is_reached:
            return "at its first step, or after a checkpoint that cannot be looked up from here"
        if self.path is None:
            return f"at its first step: no checkpoint in {self.own.folder}"
        return f"after step {self.step}: {self.path}" if self.step is not None else f"with the weights of {self.path}"

    def to_json(self) -> dict[str, Any]:
        """`here.start` of `titan validate --json`."""
        return {"step": self.step, "path": None if self.path is None else str(self.path)}


def look_at_start(
    loaded: Loaded, plan: Plan | None = None, *, starts_here: bool = False
) -> tuple[list[Finding], Start]:
    """What a run of this config would begin with, as far as it is on this machine, and what is wrong with that.

    Asked where checkpoint.enable or checkpoint.initial_load_path is set. With the plan of the run it is also told
    whether the checkpoint is one of that model. Where it `starts_here`, what is not on this machine is missing.
    """
    checkpoint = loaded.config.checkpoint
    found: list[Finding] = []
    is_here = not places.is_url(checkpoint.folder)
    start = Start(own=Checkpoints(folder=checkpoints_of(loaded.config, _run(loaded)) if is_here else _run(loaded)))
    if checkpoint.enable:
        found, start = _own(loaded, starts_here=starts_here)
    what: Literal["all", "weights"] = "all" if start.step is not None else "weights"
    # A run with a checkpoint of its own has no use for the other, which may be gone by then.
    if checkpoint.initial_load_path is not None and start.path is None:
        more, initial = _initial(
            checkpoint.initial_load_path, in_hf=checkpoint.initial_load_in_hf, starts_here=starts_here
        )
        found, start = [*found, *more], replace(start, path=initial)
    if plan is not None and start.path is not None and what == "weights" and checkpoint.initial_load_in_hf:
        found += refusals(start.path, plan.model)
    elif plan is not None and start.path is not None:
        found += _misfits(loaded, plan, start.path, what=what)
    if checkpoint.load_step == -1:
        # A key that nobody wrote has no line to point at; the switch that saves has.
        found = [
            replace(finding, key="checkpoint.enable") if finding.key == _LOAD_STEP else finding for finding in found
        ]
    lines = [locate(loaded.origins, finding.key) for finding in found]
    placed = zip(found, lines, strict=True)
    return [replace(finding, file=at.file, line=at.line, source=at.source) for finding, at in placed], start


def _misfits(loaded: Loaded, plan: Plan, path: Path, *, what: Literal["all", "weights"]) -> list[Finding]:
    """What keeps the checkpoint from being loaded into this run, or is other than it was."""
    try:
        loading = loadable(path, loaded.config, plan, what=what)
    except TitanError as mistake:
        return list(mistake.findings)
    return [] if loading.manifest is None else changes(loading.manifest, loaded.config, data={}, path=path)


def _run(loaded: Loaded) -> Path:
    """The folder of a run; that of a run without a name is called as no other, so it stands for it."""
    job = loaded.config.job
    return folder_of_runs(job.dump_folder) / (job.name or f"{loaded.stem}-...")


def _own(loaded: Loaded, *, starts_here: bool) -> tuple[list[Finding], Start]:
    """The checkpoint of its own that a run goes on from."""
    load_step = loaded.config.checkpoint.load_step
    try:
        folder = checkpoints_of(loaded.config, _run(loaded))
    except TitanError as mistake:
        found = _as_seen_from_here(mistake, starts_here=starts_here)
        return found, Start(own=Checkpoints(folder=_run(loaded)), is_reached=False)
    start = Start(own=Checkpoints(folder=folder))
    if load_step >= 0 and not starts_here and not places.is_folder(folder):
        message = f"load_step = {load_step} cannot be looked up: {folder} is not on this machine"
        return [_finding("D623", _LOAD_STEP, message, "see to it where the run starts", severity="warning")], start
    try:
        start = replace(start, own=checkpoints_in(folder))
        step, warnings = whole_step_to_load(start.own, load_step)
        start = replace(start, step=step, path=None if step is None else folder / step_folder(step))
        require_names_free(start.own, after=step or 0, until=loaded.config.training.steps)
    except TitanError as mistake:
        if places.is_remote(folder):
            return _as_seen_from_here(mistake, starts_here=starts_here), start
        return list(mistake.findings), start
    return list(warnings), start


def _as_seen_from_here(mistake: TitanError, *, starts_here: bool) -> list[Finding]:
    """What keeps a store from being looked at keeps a run from starting only where it would look from here."""
    is_of_here = ("D622", "D639")
    return [
        replace(finding, severity="warning", fix=f"{finding.fix}, where the run starts")
        if finding.rule in is_of_here and not starts_here
        else finding
        for finding in mistake.findings
    ]


def _initial(written: str, *, in_hf: bool, starts_here: bool) -> tuple[list[Finding], Path | None]:
    """The checkpoint that initial_load_path names: itself, or the newest committed one in it."""
    try:
        path = folder_of(written) if in_hf else places.place(written, key=_INITIAL)
        is_there = places.exists(path)
    except TitanError as mistake:
        return _as_seen_from_here(mistake, starts_here=starts_here), None
    except OSError as error:
        message = f"initial_load_path = {written} cannot be looked at: {str(error).lower()}"
        failed = TitanError(_finding("D622", _INITIAL, message, "let it be read"))
        return _as_seen_from_here(failed, starts_here=starts_here), None
    if not starts_here and not is_there:
        message, fix = f"initial_load_path = {written} is not on this machine", "name one that is where the run starts"
        return [_finding("D623", _INITIAL, message, fix, severity="warning")], None
    if in_hf and any(path.glob("*.safetensors")):
        return [], path
    if in_hf:
        message, fix = (
            f"initial_load_path = {written} holds no *.safetensors file",
            "name a Hugging Face model's folder",
        )
        return [_finding("D624", _INITIAL, message, fix)], None
    try:
        path, warnings = initial_checkpoint(written)
    except TitanError as mistake:
        return list(mistake.findings), None
    return list(warnings), path


def _finding(rule: str, key: str, message: str, fix: str, *, severity: Severity = "error") -> Finding:
    return Finding(rule=rule, severity=severity, key=key, message=message, fix=fix)
