"""When a run saves, and all that belongs to one save: events, phases, what is deleted after it.

Knows the config's interval and the position in the data. Does not know what a checkpoint looks like on disk
(checkpoint/store.py), nor which tensors a rank holds (state.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from engine.build import Built
from engine.checkpoint.agreed import on_all, on_first, reason
from engine.checkpoint.committed import checkpoints_in, delete, step_folder, steps_to_delete
from engine.checkpoint.manifest import Manifest, manifest_of
from engine.checkpoint.store import SaveFailed, save
from engine.config import Config
from engine.data.index import Position
from engine.errors import TitanError
from engine.planner.plan import Plan
from engine.planner.saved import saved
from engine.recorder import Recorder
from engine.report import versions
from engine.state import state_of, updates_of


class CheckpointSaver:
    """Saves into a folder; every rank asks and calls it at the same steps.

    `data` is what is known of the corpus, for the manifest. A step is never saved twice, nor the one that the run
    went on from.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        built: Built,
        *,
        folder: Path,
        group: dist.ProcessGroup,
        recorder: Recorder,
        began: Position,
        data: Mapping[str, Any],
    ) -> None:
        self._config, self._plan, self._built, self._recorder = config, plan, built, recorder
        self._folder, self._group, self._began, self._data = folder, group, began, data
        self._saved = began.step

    def is_due(self, step: int) -> bool:
        """Whether `step` is one after which a checkpoint is saved: every checkpoint.interval."""
        return step % self._config.checkpoint.interval == 0

    def save(self, step: int) -> None:
        """Saves the state after `step`, unless that is saved already; SaveFailed on every rank where it fails on one.

        Older checkpoints are deleted once this one is committed, and no earlier.
        """
        if step == self._saved:
            return
        checkpoint, began_s = self._folder / step_folder(step), time.perf_counter()
        self._recorder.begin("save")
        self._tell(step, checkpoint, state="begun")
        try:
            updates = max(on_all(self._group, f"saving {checkpoint}", lambda: updates_of(self._built)))
            manifest = save(
                state_of(self._built),
                checkpoint,
                self._manifest(step, updates),
                group=self._group,
                needed_bytes=saved(self._config, self._plan.parameters).one_bytes,
            )
        except SaveFailed as failure:
            # There may be no room for an event either.
            with contextlib.suppress(OSError):
                self._tell(step, checkpoint, state="failed", seconds=time.perf_counter() - began_s, why=str(failure))
            raise
        self._saved = step
        seconds = time.perf_counter() - began_s
        self._tell(step, checkpoint, state="committed", seconds=seconds, size_bytes=manifest.bytes)
        # The others wait here: in a collective of a step they would wait for less.
        for warning in on_first(self._group, f"deleting checkpoints of {self._folder}", self._prune):
            if dist.get_rank() == 0:
                self._recorder.write("warning", message=warning)
        self._recorder.begin("train")

    def _manifest(self, step: int, updates: int) -> Manifest:
        return manifest_of(
            self._config,
            self._plan,
            step=step,
            samples=self._began.samples + (step - self._began.step) * self._plan.global_batch_size,
            updates=updates,
            data=self._data,
            versions=versions(self._built.device),
        )

    def _prune(self) -> list[str]:
        """Deletes what is not to be kept any longer; what cannot be deleted is said, and is no reason to end."""
        warnings: list[str] = []
        try:
            found = checkpoints_in(self._folder)
        except TitanError as trouble:
            return [f"no checkpoint is deleted: {finding.message}" for finding in trouble.findings]
        for step in steps_to_delete(found, self._config.checkpoint.keep_latest_k):
            try:
                delete(self._folder / step_folder(step))
            except OSError as error:
                warnings.append(f"{step_folder(step)} of {self._folder} cannot be deleted: {reason(error)}")
        return warnings

    def _tell(
        self,
        step: int,
        checkpoint: Path,
        *,
        state: str,
        seconds: float | None = None,
        size_bytes: int | None = None,
        why: str | None = None,
    ) -> None:
        """The event of a save, which rank 0 writes for all."""
        if dist.get_rank() != 0:
            return
        more = {} if why is None else {"message": why}
        self._recorder.write(
            "checkpoint", step=step, path=str(checkpoint), seconds=seconds, bytes=size_bytes, state=state, **more
        )
