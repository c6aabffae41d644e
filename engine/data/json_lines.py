"""JSON lines, a document each, plain or compressed.

Knows lines, their fields and their places; of a compressed file, places in the text that it holds. Does not know which
files there are (corpus.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.data.compressed import broken, opened, trouble_of
from engine.data.records import Meter, Record, Unreadable

LONGEST_LINE_BYTES = 256 << 20
"""A longer line is no document: it is passed over, never held. Files that are no lines at all have such."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PASSED_AT_ONCE_BYTES = 1 << 20


def json_lines_documents(files: list[Path], meter: Meter, *, text_field: str) -> Iterator[Record]:
    """The documents of files, streamed as far as the meter goes; of one that breaks off the line reached is told."""
    for path in files:
        number, byte_offset = 0, 0
        try:
            with opened(path) as file:
                for number, (raw, size_bytes) in enumerate(lines_of(file, meter), start=1):
                    text, reason = text_of(raw, text_field, first=number == 1)
                    if text is not None:
                        yield text
                    elif reason:
                        yield Unreadable(file=str(path), line=number, byte_offset=byte_offset, reason=reason)
                    byte_offset += size_bytes
        except broken(path) as error:
            reason = trouble_of(error)
            if number:
                reason += f", after {number:,} lines"
            yield Unreadable(file=str(path), line=None, byte_offset=None, reason=reason)


def lines_of(file: BinaryIO, meter: Meter) -> Iterator[tuple[bytes | None, int]]:
    """The lines of a file as far as the meter goes, and their bytes; None for one that is too long to be held.

    A line that goes on beyond the meter is left out.
    """
    read, most_bytes = file.readline, LONGEST_LINE_BYTES + 1
    while left := meter.left:
        raw = read(most_bytes if left < 0 else min(left, most_bytes))
        if not raw:
            return
        size_bytes = len(raw)
        meter.read_bytes += size_bytes
        if not raw.endswith(b"\n"):
            if size_bytes == most_bytes:
                size_bytes += pass_line(file, meter)
                yield None, size_bytes
                continue
            if meter.left == 0 and file.read(1):
                return
        yield raw, size_bytes


def pass_line(file: BinaryIO, meter: Meter) -> int:
    """Reads to the end of a line, or of what may be read; how many bytes that was."""
    passed_bytes = 0
    while left := meter.left:
        raw = file.readline(_PASSED_AT_ONCE_BYTES if left < 0 else min(left, _PASSED_AT_ONCE_BYTES))
        passed_bytes += len(raw)
        meter.read_bytes += len(raw)
        if not raw or raw.endswith(b"\n"):
            break
    return passed_bytes


def text_of(raw: bytes | None, text_field: str, *, first: bool) -> tuple[str | None, str]:
    """The text of a line as it stands, or None and why there is none, of a blank one nothing. `first`: of its file."""
    if raw is None:
        return None, f"it is longer than {LONGEST_LINE_BYTES >> 20} MiB"
    line = (raw.removeprefix(_BYTE_ORDER_MARK) if first else raw).strip()
    return text_of_line(line, text_field) if line else (None, "")


def text_of_line(line: bytes, text_field: str) -> tuple[str | None, str]:
    """The field of one JSON line that holds its text, or None and why there is none."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"it is not JSON ({error.msg.lower().removesuffix(' at')} at column {error.colno})"
    except (ValueError, RecursionError):
        return None, "it is JSON with a number or a nesting too large to read"
    if not isinstance(record, dict):
        return None, "it is not a JSON object"
    text = record.get(text_field)
    if not isinstance(text, str):
        return None, f'it has no field "{text_field}"' if text is None else f'its field "{text_field}" is not a string'
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which is no character and which no tokenizer takes.
        return None, f'its field "{text_field}" holds half a surrogate pair'
    return text, ""
