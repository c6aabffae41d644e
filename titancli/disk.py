"""Whether the disk that will hold a run has room for its checkpoints.

Knows the folder that they go to and what its disk has free. Does not know what a checkpoint takes (planner/saved).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint import places
from engine.checkpoint.committed import Checkpoints, step_folder
from engine.errors import Finding, Severity
from engine.planner.plan import Plan
from engine.planner.saved import Saved, saved
from engine.sources import Loaded, locate
from titancli import figures

# Where the finding stands: at the first that somebody wrote.
_KEYS = ("checkpoint.keep_latest_k", "checkpoint.interval", "checkpoint.enable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What checkpoints take and what is free; `folder` is where they go, `place` the part of it that is there already.

    `standing`: checkpoints of this run that the disk holds already. `left_bytes`: what saves that never ended have left
    of theirs, which the next ones delete. `free_bytes`: None where that cannot be asked.
    """

    saved: Saved
    folder: Path
    place: Path
    standing: int
    left_bytes: int = 0
    free_bytes: int | None

    @property
    def needed_bytes(self) -> int:
        """What has to be free, beside what stands there already."""
        return max(0, self.saved.peak_bytes - self.standing * self.saved.one_bytes - self.left_bytes)

    @property
    def has_room(self) -> bool:
        """Whether as much is free as is needed, as far as is known."""
        return self.free_bytes is None or self.needed_bytes <= self.free_bytes

    @property
    def text(self) -> str:
        """One line for people."""
        free = figures.NOT_KNOWN if self.free_bytes is None else decimal(self.free_bytes)
        one = f"{decimal(self.saved.one_bytes)} ({_binary(self.saved.one_bytes)}) each"
        if places.is_remote(self.place):
            free, where = "what is free is not known", f"a store, {self.place}, does not tell"
            return f"{one}; {_peak(self.saved, self.standing)}; {free}: {where}"
        return f"{one}; {_peak(self.saved, self.standing)}; {free} free in {os.path.abspath(self.place)}"

    def to_json(self) -> dict[str, Any]:
        """`here.disk` of `titan validate --json`."""
        return {
            "folder": str(self.folder),
            "checkpoint_bytes": self.saved.one_bytes,
            "peak_bytes": self.saved.peak_bytes,
            "needed_bytes": self.needed_bytes,
            "free_bytes": self.free_bytes,
        }


def free_bytes_at(folder: Path) -> int | None:
    """What a user may still write to the disk of a folder; None where it does not tell, as no store does."""
    return places.free_bytes(folder)


def _bytes_in(folder: Path) -> int:
    """What the files of a folder hold, as far as they can be looked at."""
    with contextlib.suppress(OSError):
        return sum(places.sizes_in(folder).values())
    return 0


def look_at_disk(
    loaded: Loaded, plan: Plan, found: Checkpoints, *, free_bytes: Callable[[Path], int | None] = free_bytes_at
) -> Disk:
    """The disk that will hold the checkpoints of a run, of which `found` are there already."""
    place = found.folder
    while not places.is_remote(place) and not os.path.isdir(place) and place != place.parent:
        place = place.parent
    return Disk(
        saved=saved(loaded.config, plan.parameters),
        folder=found.folder,
        place=place,
        standing=len(found.committed),
        left_bytes=sum(_bytes_in(found.folder / step_folder(step)) for step in found.unfinished),
        free_bytes=free_bytes(place),
    )


def room_finding(loaded: Loaded, disk: Disk, *, severity: Severity) -> Finding:
    """M520 for a disk without room: a warning where the run may stand elsewhere, an error where it starts."""
    assert disk.free_bytes is not None, "a disk that does not tell what it has free is not found too small"
    origins = loaded.origins
    key = next((key for key in _KEYS if key in origins and origins[key].kind != "default"), "checkpoint.enable")
    file, line, source = locate(origins, key)
    free = f"{os.path.abspath(disk.place)} has {decimal(disk.free_bytes)} free"
    return Finding(
        rule="M520",
        severity=severity,
        key=key,
        message=f"checkpoints of {decimal(disk.saved.one_bytes)} take {_peak(disk.saved, disk.standing)}, and {free}",
        fix=_way_out(disk),
        file=file,
        line=line,
        source=source,
    )


def decimal(size_bytes: int) -> str:
    """Bytes as disks are sold, in powers of 1000, with four digits: `96.36 GB`."""
    return _in_units(size_bytes, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def _binary(size_bytes: int) -> str:
    """Bytes as `df -h` shows them."""
    return _in_units(size_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _in_units(size_bytes: int, step: int, units: tuple[str, ...]) -> str:
    power = max((power for power in range(len(units)) if size_bytes >= step**power), default=0)
    return f"{size_bytes / step**power:.4g} {units[power]}"


def _peak(taken: Saved, standing: int) -> str:
    """What this run takes at its fullest, of what that is made, and what a longer one would take."""
    made_of = rotating = f"{taken.kept} kept + 1 being written"
    if taken.standing == taken.saves:
        made_of = f"{taken.saves:,} in all"
        if taken.limit_bytes > taken.peak_bytes:
            made_of += f"; {decimal(taken.limit_bytes)} in a longer run, {rotating}"
    export = f" and {decimal(taken.export_bytes)} of export" if taken.export_bytes else ""
    there = f"; {standing:,} of them there already" if standing else ""
    return f"{decimal(taken.peak_bytes)} at their peak ({made_of}{export}{there})"


def _way_out(disk: Disk) -> str:
    """The most checkpoints that fit beside one being written, or another disk."""
    room_bytes = (disk.free_bytes or 0) + disk.standing * disk.saved.one_bytes + disk.left_bytes
    room_bytes -= disk.saved.export_bytes
    most = room_bytes // disk.saved.one_bytes - 1
    other = "job.dump_folder to a folder on a larger disk; where the run starts on another machine, its disk counts"
    if most < 1:
        return f"set {other}"
    return (
        f"set checkpoint.keep_latest_k to {most} ({decimal((most + 1) * disk.saved.one_bytes)} at the peak), or {other}"
    )
