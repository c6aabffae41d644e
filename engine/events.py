"""What a run says while it runs: one JSON object a line, one file a rank.

Knows how to append and to read what is new. Does not know what a reader makes of it
(monitor, compare). The fields of each kind are in the contract; readers skip kinds and fields
they do not know.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Literal

VERSION = 1

Kind = Literal["run_started", "phase", "step", "memory", "gpu", "checkpoint", "warning", "run_ended"]
Event = dict[str, Any]


def event_file(run: Path, rank: int) -> Path:
    """Where one rank of a run writes."""
    return run / "events" / f"rank-{rank:05d}.jsonl"


class EventLog:
    """Appends the events of one rank; each is a single write, so that a reader never sees two halves mixed."""

    def __init__(self, run: Path, rank: int) -> None:
        path = event_file(run, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rank = rank
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        # A run that was killed in mid-write left half a line; end it, so that it spoils no other.
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, kind: Kind, **fields: Any) -> None:
        """Appends one event; figures that are not finite or not known are written as null."""
        event = {"v": VERSION, "time": time.time(), "rank": self._rank, "kind": kind, **fields}
        line = json.dumps(_finite(event), separators=(",", ":"), allow_nan=False)
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Closes the file; nothing can be written after."""
        os.close(self._file)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def read_new(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Events of a file from byte `offset` on, and the offset to go on from.

    A torn last line is left for the next call; a torn line in the middle (a killed run that was
    resumed) is skipped. A file that is not there yet has no events.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    events: list[Event] = []
    for line in whole.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events, offset + len(whole)
