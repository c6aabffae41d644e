"""When a run saves, and all that belongs to one save: events, phases, what is deleted after it.

Knows the config's interval and the position in the data. Does not know what a checkpoint looks like on disk
(checkpoint/store.py), nor which tensors a rank holds (state.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from engine.build import Built
from engine.checkpoint.agreed import FailedOnRank, group_of_all, on_all, on_first, reason
from engine.checkpoint.background import Background
from engine.checkpoint.committed import checkpoints_in, delete, step_folder, steps_to_delete
from engine.checkpoint.manifest import Manifest, manifest_of
from engine.checkpoint.staging import Staging
from engine.checkpoint.store import save
from engine.config import Config
from engine.data.index import Position
from engine.errors import TitanError
from engine.parallel.mesh import COLLECTIVE_MARGIN_S
from engine.planner.plan import Plan
from engine.planner.saved import saved
from engine.pulse import Pulse
from engine.recorder import Recorder
from engine.report import versions
from engine.state import state_of, updates_of
from engine.status import NonFiniteStep

# A shorter wait is nothing that a person could act on.
_WORTH_TELLING_S = 0.1


# What engine/checkpoint raises on every rank. Of anything else only this one knows, and it ends at once.
_ON_ALL_RANKS = (FailedOnRank, TitanError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint that is committed, and what could not be deleted after it."""

    manifest: Manifest
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A checkpoint that is being written while training goes on, which stood still for `blocked_s` seconds."""

    step: int
    checkpoint: Path
    blocked_s: float
    background: Background[Written]


class CheckpointSaver:
    """Saves into a folder; every rank asks and calls it at the same steps.

    With checkpoint.async_mode a save is over once this rank's tensors are copied, or, in pinned memory, once the copies
    are queued: a thread writes and commits them, over a group of its own. One checkpoint at most is in flight.
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
        pulse: Pulse,
        began: Position,
        data: Mapping[str, Any],
    ) -> None:
        self._config, self._plan, self._built = config, plan, built
        self._recorder, self._pulse = recorder, pulse
        self._folder, self._group, self._began, self._data = folder, group, began, data
        self._saved = began.step
        self._flight: Flight | None = None
        self._staging: Staging | None = None
        self._looked_s, self._step_s = time.perf_counter(), 0.0
        self.failure: Exception | None = None
        self._writes = group
        mode = config.checkpoint.async_mode
        if mode != "disabled":
            self._staging = Staging(built.device, pinned=mode == "async_with_pinned_mem")
            self._writes = group_of_all(config.comm.save_timeout_seconds + COLLECTIVE_MARGIN_S)

    def is_due(self, step: int) -> bool:
        """Whether `step` is one after which a checkpoint is saved: every checkpoint.interval."""
        return step % self._config.checkpoint.interval == 0

    def save(self, step: int) -> None:
        """Saves the state after `step`, unless that is saved already; SaveFailed on every rank where it fails on one.

        What is in flight is waited for first. Older checkpoints are deleted once this one is committed, and no earlier.
        """
        if step == self._saved:
            return
        checkpoint, began_s = self._folder / step_folder(step), time.perf_counter()
        self._recorder.begin("save")
        self._land_before(step)
        self._tell(step, checkpoint, state="begun")
        updates = max(on_all(self._group, f"saving {checkpoint}", lambda: updates_of(self._built)))
        manifest, state = self._manifest(step, updates), state_of(self._built)
        if self._staging is None:
            background = Background("titan-save", lambda: self._write(state, checkpoint, manifest), at_once=True)
        else:
            copies = self._staging.copy(state)
            background = Background("titan-save", lambda: self._write_beside(copies, checkpoint, manifest))
        blocked_s = time.perf_counter() - began_s
        self._flight = Flight(step=step, checkpoint=checkpoint, blocked_s=blocked_s, background=background)
        if self._staging is None:
            self.finish()
        self._saved, self._looked_s = step, time.perf_counter()
        self._recorder.begin("train")

    def before_update(self) -> None:
        """Keeps the next update from changing what is still being copied; the CPU does not wait."""
        if self._flight is not None and self._staging is not None:
            self._staging.hold_updates()

    def look(self) -> Exception | None:
        """Writes down what has become of a checkpoint in flight, without waiting; the failure of one, if any failed.

        Asked after every step, which tells how long those take.
        """
        before_s, self._looked_s = self._looked_s, time.perf_counter()
        self._step_s = self._looked_s - before_s
        if self._flight is not None and self._flight.background.is_over:
            with contextlib.suppress(*_ON_ALL_RANKS):
                self._land(self._flight)
        return self.failure

    def finish(self) -> None:
        """Waits for the checkpoint in flight; on every rank raises why it failed, or one before it did."""
        if self._flight is not None:
            self._land(self._flight)
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: object) -> None:
        """At the end of a run that failed: what is in flight may still be committed.

        Where all ranks fail together that may take its time. One that fails alone keeps the others waiting in a
        collective: it leaves before they would take it for stuck, and an unfinished checkpoint is never loaded.
        """
        if self._flight is not None:
            self._close(self._flight, together=isinstance(failure, NonFiniteStep))

    def _close(self, flight: Flight, *, together: bool) -> None:
        comm = self._config.comm
        # Afresh, as time went by in this place before; another one would be taken for progress.
        point, _, allowed_s, limit = self._pulse.place
        within_s = min(comm.save_timeout_seconds, comm.train_timeout_seconds / 2)
        if together:
            within_s = allowed_s = comm.save_timeout_seconds
            limit = f"comm.save_timeout_seconds = {allowed_s}"
        with self._pulse.within(point, allowed_s, limit):
            is_over = flight.background.wait(within_s)
        # Whatever it is, it came after the failure that ends this run, and is not to be told in its place.
        with contextlib.suppress(Exception):
            if is_over:
                self._land(flight)
            elif dist.get_rank() == 0:
                why = f"the run failed, and {within_s:g} s later it was not written"
                self._tell(flight.step, flight.checkpoint, state="failed", flight=flight, why=why)

    def _write_beside(self, tensors: Mapping[str, Tensor], checkpoint: Path, manifest: Manifest) -> Written:
        """The same in a thread: ranks that hear nothing of it for too long are told which one it is stuck on."""
        assert self._staging is not None, "what is written beside training is a copy"
        allowed_s = self._config.comm.save_timeout_seconds
        with self._pulse.beside("save", manifest.step, allowed_s, f"comm.save_timeout_seconds = {allowed_s}"):
            self._staging.wait()
            return self._write(tensors, checkpoint, manifest)

    def _write(self, tensors: Mapping[str, Tensor], checkpoint: Path, manifest: Manifest) -> Written:
        """Writes, commits and prunes; the part of a save that may be a thread's."""
        needed_bytes = saved(self._config, self._plan.parameters).one_bytes
        whole = save(tensors, checkpoint, manifest, group=self._writes, needed_bytes=needed_bytes)
        # The others wait here: in a collective of a step they would wait for less.
        warnings = on_first(self._writes, f"deleting checkpoints of {self._folder}", self._prune)
        return Written(manifest=whole, warnings=warnings)

    def _land_before(self, step: int) -> None:
        """Waits for the checkpoint before that of `step`; where that takes a while, people are told what to do."""
        flight, began_s = self._flight, time.perf_counter()
        self.finish()
        waited_s = time.perf_counter() - began_s
        if flight is not None and waited_s > max(self._step_s, _WORTH_TELLING_S) and dist.get_rank() == 0:
            message = (
                f"the checkpoint of step {step} waited {waited_s:.1f} s until that of step {flight.step} was written: "
                "set checkpoint.interval higher, or checkpoint.folder to a faster disk"
            )
            self._recorder.write("warning", message=message)

    def _land(self, flight: Flight) -> None:
        """Takes what became of a checkpoint in flight, waited for, and writes it down."""
        self._flight = None
        try:
            written = flight.background.made()
        except _ON_ALL_RANKS as failure:
            self.failure = failure
            # There may be no room for an event either.
            with contextlib.suppress(OSError):
                self._tell(flight.step, flight.checkpoint, state="failed", flight=flight, why=str(failure))
            raise
        self._tell(flight.step, flight.checkpoint, state="committed", flight=flight, size_bytes=written.manifest.bytes)
        for warning in written.warnings if dist.get_rank() == 0 else ():
            self._recorder.write("warning", message=warning)

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
        flight: Flight | None = None,
        size_bytes: int | None = None,
        why: str | None = None,
    ) -> None:
        """The event of a save, which rank 0 writes for all: `seconds` in all, `blocked_s` those that training stood."""
        if dist.get_rank() != 0:
            return
        more: dict[str, Any] = {} if why is None else {"message": why}
        seconds = None
        if flight is not None:
            behind_s = 0.0 if self._staging is None else flight.background.seconds
            seconds, more = flight.blocked_s + behind_s, more | {"blocked_s": flight.blocked_s}
        self._recorder.write(
            "checkpoint", step=step, path=str(checkpoint), seconds=seconds, bytes=size_bytes, state=state, **more
        )
