"""What a run says while it runs: one JSON object a line, one file a rank.

Knows how to append and to read what is new, and which fields the contract promises. Does not know
what a reader makes of them (monitor, compare). Readers skip kinds and fields they do not know.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

VERSION = 1

Kind = Literal[
    "run_started", "phase", "step", "memory", "gpu", "checkpoint", "exported", "validation", "warning", "run_ended"
]
Event = dict[str, Any]

_KIND_WITHIN_BYTES = 120
# Made once: json.loads makes a new one each time where it is told of constants.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)

EVERY_EVENT = ("v", "time", "rank", "kind")
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "run_started": ("world_size", "host", "pid", "local_parameters", "gpu", "versions", "resumed_from"),
    "phase": ("name", "state", "seconds"),
    "step": (
        *("step", "loss", "grad_norm", "lr", "tokens", "slots", "step_s", "tokens_per_s_per_gpu", "mfu_pct"),
        "breakdown",
    ),
    "memory": (
        *("active_bytes", "reserved_bytes", "peak_active_bytes", "peak_reserved_bytes", "alloc_retries", "ooms"),
        "cpu_pct",
    ),
    "gpu": (
        *("uuid", "sm_pct", "tensor_pct", "dram_pct", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"),
        *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "power_w", "used_bytes", "capacity_bytes"),
        *("network_rx_bytes_per_s", "network_tx_bytes_per_s", "reasons", "source", "peaks"),
    ),
    "checkpoint": ("step", "path", "seconds", "bytes", "state"),
    "warning": ("message",),
    "run_ended": ("reason", "exit_code", "first_failure"),
}
"""What each kind carries beside EVERY_EVENT; a figure that is not known is there as null. `plan` is rank 0's alone."""


def missing_fields(event: Event) -> tuple[str, ...]:
    """Fields that the contract promises and this event lacks; `breakdown` and other tables are not looked into."""
    promised = EVERY_EVENT + FIELDS.get(event.get("kind", ""), ())
    if event.get("kind") == "run_started" and event.get("rank") == 0:
        promised += ("plan",)
    return tuple(field for field in promised if field not in event)


def event_file(run: Path, rank: int) -> Path:
    """Where one rank of a run writes."""
    return run / "events" / f"rank-{rank:05d}.jsonl"


class EventLog:
    """Appends the events of one rank; each is a single write, so that a reader never sees two halves mixed.

    Threads may share it. OSError of the file system (a full disk) reaches the caller.
    """

    def __init__(self, run: Path, rank: int) -> None:
        path = event_file(run, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rank = rank
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        # A run that was killed in mid-write left half a line; the next event ends it, so that it spoils no other.
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def write(self, kind: Kind, **fields: Any) -> None:
        """Appends one event; figures that are not finite or not known are written as null."""
        assert not fields.keys() & set(EVERY_EVENT), "v, time, rank and kind are the log's own"
        event = {"v": VERSION, "time": time.time(), "rank": self._rank, "kind": kind, **fields}
        self._append(json.dumps(_finite(event), separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        with self._lock:
            rest = b"\n" + line if self._torn else line
            # Only a full disk or a signal leaves part of it unwritten; until the rest is there the line is torn.
            self._torn = True
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._torn = False

    def close(self) -> None:
        """Closes the file; nothing can be written after."""
        os.close(self._file)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def read_new(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Events of a file from byte `offset` on, and the offset to go on from.

    A torn last line is left for the next call; what is no event (a line torn by a kill and ended
    by the resumed run, bytes a crash left) is skipped. A file that is not there has no events. One
    that was replaced since, seen by its end or by what stands before `offset`, is read from its start.
    """
    try:
        with path.open("rb") as file:
            if offset and (os.fstat(file.fileno()).st_size < offset or _byte_before(offset, file.fileno()) != b"\n"):
                offset = 0
            file.seek(offset)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    events = [event for line in whole.split(b"\n") if (event := event_of(line)) is not None]
    return events, offset + len(whole)


def read_ends(path: Path, *, head_bytes: int = 4096, tail_bytes: int = 12_288) -> tuple[list[Event], int]:
    """The first and the last events of a file, and the offset to go on from; all of it where it is short.

    At least one whole line is read at the end, however long it is.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(head_bytes)
            begin, tail = max(0, size - tail_bytes), b""
            while begin > len(head):
                file.seek(begin)
                tail = file.read(size - begin)
                if tail.count(b"\n") > 1:
                    break
                begin = max(0, begin - 2 * (size - begin))
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    if begin <= len(head):
        return read_new(path)
    first = [event for line in head.split(b"\n")[:-1] if (event := event_of(line)) is not None]
    last, offset = read_new(path, begin + tail.index(b"\n") + 1)
    return first + last, offset


def read_all_but(path: Path, *kinds: Kind) -> Iterator[Event]:
    """All whole events of a file in their order, but those of some kinds, which are passed over without a look inside.

    What is no event is skipped. A file that is not there has none; OSError where it cannot be read.
    """
    marks = tuple(f'"kind":"{kind}"'.encode() for kind in kinds)
    try:
        with path.open("rb") as file:
            for line in file:
                # EventLog writes the kind among the first fields of a line.
                begun = line[:_KIND_WITHIN_BYTES]
                if any(mark in begun for mark in marks) or not line.endswith(b"\n"):
                    continue
                event = event_of(line)
                if event is not None and event["kind"] not in kinds:
                    yield event
    except (FileNotFoundError, NotADirectoryError):
        return


def _byte_before(offset: int, file: int) -> bytes:
    return os.pread(file, 1, offset - 1)


def event_of(line: bytes) -> Event | None:
    """The event of one line, or None. Figures that are no JSON (NaN of another writer) are read as None."""
    try:
        event = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None
