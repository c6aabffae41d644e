"""What is on this machine of what a config names: data, packages, the checkpoint it begins with, room for its own.

Knows which of them a config asks for. Does not know how they are looked at (corpus, resume, disk), nor whether the run
starts on this machine: what is not here is a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import Finding
from engine.rules import Report
from engine.sources import Loaded

if TYPE_CHECKING:
    from titancli.corpus import Seen
    from titancli.disk import Disk
    from titancli.resume import Start

_CORPORA = {
    "training.dataset_path": "training",
    "data.mixture": "mixture",
    "validation.dataset_path": "validation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What was found; None where the config does not ask for it."""

    data: tuple[Seen, ...] = ()
    start: Start | None = None
    disk: Disk | None = None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        rows = [(_CORPORA[seen.corpus.key], seen.text) for seen in self.data]
        rows += [] if self.start is None else [("begins", self.start.text)]
        return rows + ([] if self.disk is None else [("checkpoints", self.disk.text)])

    def to_json(self) -> dict[str, Any]:
        """`here` of `titan validate --json`."""
        return {
            "data": [seen.to_json() for seen in self.data],
            "start": None if self.start is None else self.start.to_json(),
            "disk": None if self.disk is None else self.disk.to_json(),
        }


def look_around(
    loaded: Loaded, checked: Report, *, free_bytes: Callable[[Path], int | None] | None = None
) -> tuple[Report, Here]:
    """The report with what this machine says to the config, and what was found; `free_bytes` of a folder's disk."""
    from titancli.corpus import look_at_data
    from titancli.packages import look_for_packages

    findings, data = look_at_data(loaded, checked.plan)
    findings += look_for_packages(loaded, starts_here=False)
    start: Start | None = None
    disk: Disk | None = None
    checkpoint = loaded.config.checkpoint
    reads_it = not any(key.partition(".")[0] in ("checkpoint", "job") for key in loaded.broken)
    if reads_it and (checkpoint.enable or checkpoint.initial_load_path is not None):
        from titancli.resume import look_at_start

        more, start = look_at_start(loaded, checked.plan)
        findings += more
        if checkpoint.enable and checked.plan is not None and start.is_reached:
            found, disk = _room(loaded, checked, start, free_bytes)
            findings += found
    return checked.joined(findings), Here(data=tuple(data), start=start, disk=disk)


def _room(
    loaded: Loaded, checked: Report, start: Start, free_bytes: Callable[[Path], int | None] | None
) -> tuple[list[Finding], Disk]:
    from titancli.disk import free_bytes_at, look_at_disk, room_finding

    assert checked.plan is not None, "the caller has a plan"
    disk = look_at_disk(loaded, checked.plan, start.standing, free_bytes=free_bytes or free_bytes_at)
    return [] if disk.has_room else [room_finding(loaded, disk, severity="warning")], disk
