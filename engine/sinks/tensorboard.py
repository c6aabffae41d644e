"""Events as curves and texts of TensorBoard, through torch's own writer.

Knows its files: a resumed run adds one, which takes back what an earlier one says of steps that are done anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.events import Event
from engine.extras import TENSORBOARD
from engine.sinks.scalars import ByStep


class TensorBoardSink:
    """Writes into a folder that `tensorboard --logdir` of it, or of all runs, shows."""

    key, name = TENSORBOARD.key, TENSORBOARD.name

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_step = ByStep()
        self._early: list[Event] = []
        self._writer: Any = None

    def load(self) -> None:
        """Imports torch's writer; ImportError where the package is not there."""
        import torch.utils.tensorboard  # noqa: F401

    def take(self, events: Sequence[Event]) -> None:
        """Writes the events down; what comes before the beginning of the run waits for it."""
        for event in events:
            if event["kind"] == "run_started":
                self._open(event)
            if self._writer is None:
                self._early.append(event)
            else:
                self._write(event)
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    def advice(self, failure: BaseException) -> str:
        """What to do about a failure."""
        if isinstance(failure, ImportError):
            return f"{TENSORBOARD.pip}, or set {self.key} to false"
        return f"see to it that {self._folder} can be written; the events of the run folder are whole"

    def _open(self, event: Event) -> None:
        from torch.utils.tensorboard import SummaryWriter

        resumed_from = event.get("resumed_from") or 0
        self._writer = SummaryWriter(str(self._folder), purge_step=resumed_from + 1)
        self._by_step.step = resumed_from
        early, self._early = self._early, []
        for waited in early:
            self._write(waited)

    def _write(self, event: Event) -> None:
        for name, value in self._by_step.take(event).items():
            self._writer.add_scalar(name, value, self._by_step.step, walltime=event["time"])
        text = event.get("message") if event["kind"] == "warning" else event.get("reason")
        if event["kind"] in ("warning", "run_ended"):
            self._writer.add_text(event["kind"], str(text), self._by_step.step, walltime=event["time"])
