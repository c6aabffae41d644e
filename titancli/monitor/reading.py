"""What is new in the events of a rank, event by event, however long the file is.

Knows what may be left out of a file that is seen for the first time: of rank 0's, which tells how the run went, most
steps in its middle; of the others', all but their ends and newest profiles. Does not know what events mean (fold).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.events import Event, event_of

_PIECE_BYTES = 4 << 20
# The whole of a file as long as this is read in a tenth of a second.
LONG_BYTES = 8 << 20
_HEAD_BYTES, _TAIL_BYTES = 64 << 10, 2 << 20
# So many of the steps in between are enough for a curve of 120 points.
_STEPS_BETWEEN = 1_000
_OTHERS_HEAD_BYTES, _OTHERS_TAIL_BYTES = 4 << 10, 12 << 10
# The newest profiles may lie far back where steps are short: of few files more is searched than of many.
_LEAST_BACK_BYTES, _MOST_BACK_BYTES, _BACK_BYTES_IN_ALL = 256 << 10, 4 << 20, 128 << 20
_PROFILES = 2
_KIND = b'"kind":"'
_FREQUENT = (b'step"', b'memory"', b'gpu"')
_PROFILED, _NOT_PROFILED = b'"profiled_s":', b'"profiled_s":null'


class Reader:
    """The events of one file from byte `offset` on; `offset` moves along, and stays before a torn last line.

    One that was replaced since, seen by its end or by what stands before `offset`, is read from its start. OSError of
    the file system reaches the caller; a file that is not there has no events.
    """

    def __init__(self, path: Path, offset: int = 0, *, is_whole: bool, of_files: int = 1) -> None:
        """`is_whole`: all of it may count; else its ends are enough where it is seen for the first time.

        `of_files` are read in one go.
        """
        self.path, self.offset = path, offset
        self._is_whole = is_whole
        self._back_bytes = min(_MOST_BACK_BYTES, max(_LEAST_BACK_BYTES, _BACK_BYTES_IN_ALL // of_files))

    def __iter__(self) -> Iterator[Event]:
        try:
            size = self.path.stat().st_size
            if size == self.offset:
                return
            with self.path.open("rb") as file:
                yield from self._of(file)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _of(self, file: BinaryIO) -> Iterator[Event]:
        size = os.fstat(file.fileno()).st_size
        if self.offset and (size < self.offset or os.pread(file.fileno(), 1, self.offset - 1) != b"\n"):
            self.offset = 0
        if not self._is_whole and self.offset == 0 and size > _OTHERS_HEAD_BYTES + _OTHERS_TAIL_BYTES:
            yield from self._ends(file, size)
        elif size - self.offset > LONG_BYTES:
            yield from self._thinned(file, size)
        else:
            yield from _events(self._lines(file, size))

    def _lines(self, file: BinaryIO, end: int) -> Iterator[bytes]:
        """Whole lines from `offset` to `end`, without keeping them all."""
        file.seek(self.offset)
        rest = b""
        while piece := file.read(min(_PIECE_BYTES, end - self.offset - len(rest))):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self.offset += len(line) + 1
                yield line

    def _thinned(self, file: BinaryIO, size: int) -> Iterator[Event]:
        """Whatever is rare, all of both ends, and between them of what is frequent profiles and a step now and then."""
        begin, end = self.offset + _HEAD_BYTES, size - _TAIL_BYTES
        apart = max(1, (end - begin) // _STEPS_BETWEEN)
        next_step = begin
        for line in self._lines(file, size):
            at = self.offset
            if begin < at < end:
                kind = line.find(_KIND) + len(_KIND)
                if line.startswith(_FREQUENT, kind):
                    is_due = at >= next_step and line.startswith(_FREQUENT[0], kind)
                    if not is_due and not _has_profile(line):
                        continue
                    next_step = at + apart if is_due else next_step
                else:
                    next_step = at  # the first step after a new beginning counts
            yield from _events([line])

    def _ends(self, file: BinaryIO, size: int) -> Iterator[Event]:
        head = file.read(_OTHERS_HEAD_BYTES).split(b"\n")[:-1]
        yield from _events(head)
        begin, lines = self._last_lines(file, size, _OTHERS_TAIL_BYTES)
        found = [line for line in lines if _has_profile(line)]
        if len(found) < _PROFILES:
            _, before = self._last_lines(file, begin, self._back_bytes)
            wanted = _PROFILES - len(found)
            yield from _events([line for line in before if _has_profile(line)][-wanted:])
        self.offset = begin + sum(len(line) + 1 for line in lines)
        yield from _events(lines)

    def _last_lines(self, file: BinaryIO, end: int, most_bytes: int) -> tuple[int, list[bytes]]:
        """Whole lines before `end`, as many as so many bytes hold and at least one, and where they begin."""
        while True:
            start = max(0, end - most_bytes)
            file.seek(start)
            data = file.read(end - start)
            first = data.find(b"\n") + 1 if start else 0
            whole = data[first : data.rfind(b"\n") + 1]
            if whole or not start:
                return start + first, whole.split(b"\n")[:-1]
            most_bytes *= 2


def _has_profile(line: bytes) -> bool:
    return _PROFILED in line and _NOT_PROFILED not in line


def _events(lines: Iterator[bytes] | list[bytes]) -> Iterator[Event]:
    return (event for line in lines if (event := event_of(line)) is not None)
