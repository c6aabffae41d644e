"""A stretch of a file of JSON lines, so that several processes may read one file.

Knows which lines belong to a stretch: those that begin in it. Places are those of the whole file. Does not know
compressed files, which can only be read from their beginning (json_lines.py), nor how long stretches are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.data.json_lines import lines_of, pass_line, text_of
from engine.data.records import Meter, Record, Unreadable

_COUNTED_AT_ONCE = 1 << 24


def json_lines_between(path: Path, begin: int, end: int, *, text_field: str) -> Iterator[Record]:
    """The documents of the lines that begin at the bytes [begin, end) of a file."""
    try:
        with path.open("rb") as file:
            if begin:
                # The line that the byte before belongs to is another stretch's; where it ends there, none is lost.
                file.seek(begin - 1)
                pass_line(file, Meter())
            first = byte_offset = file.tell()
            lines_before: int | None = None
            for number, (raw, size_bytes) in enumerate(lines_of(file, Meter()), start=1):
                if byte_offset >= end:
                    return
                text, reason = text_of(raw, text_field, first=byte_offset == 0)
                if text is not None:
                    yield text
                elif reason:
                    if lines_before is None:
                        lines_before = _lines_in(path, first)
                    line = lines_before + number
                    yield Unreadable(file=str(path), line=line, byte_offset=byte_offset, reason=reason)
                byte_offset += size_bytes
    except OSError as error:
        yield Unreadable(file=str(path), line=None, byte_offset=None, reason=error.strerror or str(error))


def _lines_in(path: Path, size_bytes: int) -> int:
    """Lines that end in the first bytes of a file: counted only where one is to be named."""
    lines = 0
    with path.open("rb") as file:
        while size_bytes:
            some = file.read(min(size_bytes, _COUNTED_AT_ONCE))
            lines += some.count(b"\n")
            size_bytes -= len(some) or size_bytes
    return lines
