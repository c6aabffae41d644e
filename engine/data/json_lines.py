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


def json_lines_documents(files: list[Path], meter: Meter, *, text_field: str) -> Iterator[Record]:
    """The documents of files, streamed as far as the meter goes; of one that breaks off the line reached is told."""
    for path in files:
        number, byte_offset = 0, 0
        try:
            with opened(path) as file:
                for number, raw in enumerate(_lines(file, meter), start=1):
                    line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
                    if line:
                        text, reason = text_of_line(line, text_field)
                        if text is None:
                            yield Unreadable(file=str(path), line=number, byte_offset=byte_offset, reason=reason)
                        else:
                            yield text
                    byte_offset += len(raw)
        except broken(path) as error:
            reason = trouble_of(error)
            if number:
                reason += f", after {number:,} lines"
            yield Unreadable(file=str(path), line=None, byte_offset=None, reason=reason)


def _lines(file: BinaryIO, meter: Meter) -> Iterator[bytes]:
    """The lines of a file as far as the meter goes; one that goes on beyond it is left out."""
    if meter.most_bytes is None:
        # As it is in every run: nothing counts, and the file hands its lines on by itself.
        yield from file
    while meter.left and (raw := file.readline(meter.left)):
        meter.read_bytes += len(raw)
        if meter.left == 0 and not raw.endswith(b"\n") and file.read(1):
            return
        yield raw


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
