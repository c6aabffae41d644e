"""What the manifest of a checkpoint says of the run that wrote it, and whether a run can go on from it.

Knows the fields of `manifest.json` and what a run must have in common with them. Does not know which checkpoints are
committed (committed.py), nor torch: `titan validate` and `titan launch` ask here before anything starts.

A layout may differ, and so may the batch, the learning rate and the length of the run. Shapes, precision and optimizer
may not: what is saved would not be what the run needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from engine.checkpoint.committed import MANIFEST, written_in
from engine.config import Config
from engine.errors import Finding, Severity, TitanError
from engine.planner.plan import Plan

SCHEMA = 2
"""Raised whenever a field of the manifest is added or changes its meaning."""
_SINCE_2 = frozenset(("random", "committed_s", "crc32"))
"""Fields that schema 1 has not; all that it has means the same here."""
_COUNTS = ("step", "samples", "updates")
_TABLES = ("layout", "model", "lr_horizon", "data", "files", "random", "crc32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One `manifest.json`.

    `samples`: read over all data ranks since the run began, which is the run's place in its data: sample numbers run
    over epochs, corpora and ranks. `data`: what the samples were numbered over. `updates`: those of the optimizer.
    `files`: bytes of every other file of the folder, by name; `bytes` their sum. `crc32`: of files, by name: that of
    `.metadata`, for torch writes one beside every tensor of the others.

    `random`: `generators` (`cpu`, `cuda`) and `ranks`; the state of rank 7's first one is the tensor random.cpu.00007.
    The order of the data needs none: it is drawn from data.shuffle_seed. `committed_s`: Unix seconds.
    """

    step: int
    samples: int
    updates: int
    layout: Mapping[str, Any]
    config_sha256: str
    model: Mapping[str, Any]
    parameters: int
    dtype: str
    optimizer: str
    lr_horizon: Mapping[str, Any]
    data: Mapping[str, Any]
    seed: int
    versions: Mapping[str, Any]
    bytes: int = 0
    files: Mapping[str, int]
    random: Mapping[str, Any] = field(default_factory=dict)
    committed_s: float | None = None
    crc32: Mapping[str, int] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The object that stands in the file."""
        return {"schema": self.schema} | asdict(self)

    def with_files(
        self, files: Mapping[str, int], *, crc32: Mapping[str, int] = MappingProxyType({}), now_s: float | None = None
    ) -> Manifest:
        """The same with the bytes of its files and their sum, checksums, and the time at which it is committed."""
        files, total = dict(sorted(files.items())), sum(files.values())
        return replace(self, files=files, bytes=total, crc32=dict(crc32), committed_s=now_s)


def manifest_of(
    config: Config, plan: Plan, *, step: int, samples: int, updates: int, data: Mapping[str, Any], versions: Any
) -> Manifest:
    """What a run says of itself after a step; `data` is what is known of its corpus beside the config."""
    training, device = config.training, "cpu" if plan.gpu == "cpu" else "cuda"
    return Manifest(
        step=step,
        samples=samples,
        updates=updates,
        layout={
            "world_size": plan.world_size,
            "mesh": asdict(plan.mesh),
            "device": device,
        },
        config_sha256=hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest(),
        model=asdict(plan.model),
        parameters=plan.parameters,
        dtype=training.dtype,
        optimizer=config.optimizer.name,
        lr_horizon={"steps": training.steps, **config.lr_scheduler.model_dump(mode="json")},
        data={**_numbering(config), **data},
        seed=config.debug.seed,
        versions=versions,
        files={},
        random={"generators": sorted({"cpu", device}), "ranks": plan.world_size},
    )


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of a committed checkpoint; TitanError D631 where it is not one that this release can read."""
    written = written_in(checkpoint) or {}
    schema = written.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        reads = f"1 to {SCHEMA}"
        found = "has no schema version" if schema is None else f"has schema {schema!r}, and this release reads {reads}"
        fix = "load it with the release of titan that wrote it" if schema is not None else "name one that titan wrote"
        raise TitanError(_finding("D631", "checkpoint.load_step", f"{checkpoint / MANIFEST} {found}", fix))
    wrong = _fault(written)
    if wrong:
        message = f"{checkpoint / MANIFEST} cannot be read: {wrong}"
        raise TitanError(_finding("D631", "checkpoint.load_step", message, "name one that titan wrote"))
    return Manifest(**written)


def _fault(written: Mapping[str, Any]) -> str:
    """What keeps an object of this schema from being a manifest; empty where nothing does."""
    names = {each.name for each in fields(Manifest)} - (_SINCE_2 if written["schema"] == 1 else frozenset())
    if missing := names - written.keys():
        return f"it lacks {', '.join(sorted(missing))}"
    if unknown := written.keys() - names:
        return f"{', '.join(sorted(unknown))} is not of schema {written['schema']}"
    horizon = written["lr_horizon"]
    numbers = {name: written[name] for name in _COUNTS}
    numbers |= {"lr_horizon.steps": horizon.get("steps")} if isinstance(horizon, dict) else {}
    wrong = [name for name, value in numbers.items() if type(value) is not int or value < 0]
    wrong += [name for name in _TABLES if not isinstance(written.get(name, {}), dict)]
    return f"{wrong[0]} is {numbers.get(wrong[0], written.get(wrong[0]))!r}" if wrong else ""


def refusals(
    manifest: Manifest, config: Config, plan: Plan, *, path: Path, loads: Literal["all", "weights"]
) -> list[Finding]:
    """D632 for everything that keeps a run from loading a checkpoint: all of its state, or its weights alone."""
    found: list[Finding] = []
    start_anew = "or start a run of another name without it"
    for name, there, here in _other_numbers(manifest.model, plan.model):
        message = f"{path} holds a model with {name} = {there}, and this run has {here}"
        found.append(_finding("D632", f"model.shape.{name}", message, f"give it {name} = {there}, {start_anew}"))
    if manifest.dtype != config.training.dtype:
        message = f"{path} holds weights in {manifest.dtype}, and this run keeps them in {config.training.dtype}"
        found.append(_finding("D632", "training.dtype", message, f"set it to {manifest.dtype}, {start_anew}"))
    if loads == "weights":
        return found
    if manifest.optimizer != config.optimizer.name:
        message = f"{path} holds states of {manifest.optimizer}, and this run updates with {config.optimizer.name}"
        fix = f"set it to {manifest.optimizer}, or name the checkpoint in checkpoint.initial_load_path of another run"
        found.append(_finding("D632", "optimizer.name", message, fix))
    if manifest.step > config.training.steps:
        message = f"{path} is after step {manifest.step:,}, and training.steps is {config.training.steps:,}"
        fix = f"set it to {manifest.step} or more, or checkpoint.load_step to an earlier one"
        found.append(_finding("D633", "training.steps", message, fix))
    return found


def changes(manifest: Manifest, config: Config, *, data: Mapping[str, Any], path: Path) -> list[Finding]:
    """Warnings: what of a run is other than when it was saved, and is taken as it is now.

    `data` is what is known of the corpus now; nothing of it is compared where that is empty.
    """
    found: list[Finding] = []
    horizon = manifest.lr_horizon.get("steps")
    if horizon != config.training.steps:
        message = f"{path} was saved in a run of {horizon:,} steps, and training.steps is {config.training.steps:,}"
        fix = "nothing needs to be done: the learning rate follows the curve of the new length from here on"
        found.append(_finding("D634", "training.steps", message, fix, severity="warning"))
    there = dict(manifest.data)
    now = {**_numbering(config), **data}
    other = [name for name, value in now.items() if name in there and there[name] != value]
    if other:
        words = ", ".join(f"{name} was {there[name]} and is {now[name]}" for name in other)
        message = (
            f"{path} was saved over other data ({words}): its {manifest.samples:,} samples are not those read here"
        )
        fix = "give the run the corpus that it had, so that nothing is read twice or left out"
        found.append(_finding("D635", "training.dataset", message, fix, severity="warning"))
    return found


def _numbering(config: Config) -> dict[str, Any]:
    """What of a config gives samples their numbers."""
    return {"seq_len": config.training.seq_len, "shuffle_seed": config.debug.seed if config.data.shuffle else None}


def _other_numbers(there: Mapping[str, Any], shape: Any) -> Iterator[tuple[str, Any, Any]]:
    """Numbers of the model that differ, as they are written in JSON."""
    here = json.loads(json.dumps(asdict(shape)))
    for name in here:
        if there.get(name) != here[name]:
            yield name, there.get(name), here[name]


def _finding(rule: str, key: str, message: str, fix: str, *, severity: Severity = "error") -> Finding:
    return Finding(rule=rule, severity=severity, key=key, message=message, fix=fix)
