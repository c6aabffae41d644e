"""One part of a corpus becomes one shard: what a worker of a preparation does.

Knows how records become ids in a file, and what is counted on the way; ids that others have written are only counted.
Does not know which parts there are (prepare.py), nor other processes (prepare_pool.py). Files appear whole or not at
all: each is written under another name, and what is said of them (`PartDone`) comes last.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.data.mapped import MappedIds
from engine.data.prepared import PARTS
from engine.data.records import MOST_BAD_KEPT, Record, Unreadable
from engine.data.tokenising import batches_of
from engine.data.tokenizer import Ids, Tokenizer, id_dtype

PARTIAL = ".partial"
_TELL_EVERY_S = 0.5
_SCANNED_AT_ONCE = 1 << 22

Tell = Callable[[int, int], None]
"""Told of bytes of text and of tokens that a part has come to, every half second."""

StartsIn = Callable[[NDArray[Any], int], NDArray[np.int64]]
"""Finds where documents start in some ids of a part, which are so many places into it; gives places in the part."""

_BEYOND = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDone:
    """What is in a part. `bad`: its first records that could not be read; `largest_id` is -1 without tokens."""

    documents: int
    tokens: int
    crc32: int
    largest_id: int
    bad_lines: int
    bad_files: int
    bad: tuple[Unreadable, ...]


class Refused(Exception):
    """Records that cannot be read, under the policy that no such record is left out."""

    def __init__(self, unreadable: list[Unreadable]) -> None:
        self.unreadable = unreadable
        super().__init__(f"{len(unreadable)} records cannot be read")


def tokenise_part(
    records: Iterable[Record], tokenizer: Tokenizer, *, ids: Path, starts: Path, skip_unreadable: bool, tell: Tell
) -> PartDone:
    """Writes the ids of a part's documents, and where each starts within them (int64).

    Raises Refused, and leaves nothing, for the first records that cannot be read unless they are skipped.
    """
    counts = _Counts(skip_unreadable=skip_unreadable)
    dtype = np.dtype(id_dtype(tokenizer.vocab_used)).newbyteorder("<")
    with written(ids) as ids_file, written(starts) as starts_file:
        for texts in batches_of(counts.texts(records)):
            pieces = tokenizer.encode(texts)
            counts.add(pieces, dtype, ids_file, starts_file)
            counts.told(tell, sum(map(len, texts)))
        counts.refuse()
    return counts.done


class _Counts:
    """What has been written of a part so far."""

    def __init__(self, *, skip_unreadable: bool) -> None:
        self._skips = skip_unreadable
        self._unreadable: list[Unreadable] = []
        self._bad_lines = self._bad_files = 0
        self._documents = self._tokens = self._crc32 = self._text_bytes = 0
        self._largest_id = -1
        self._told_s = time.monotonic()

    def texts(self, records: Iterable[Record]) -> Iterator[str]:
        """The documents with text; after one that is refused no more of them, only what else cannot be read."""
        refused = False
        for record in records:
            if isinstance(record, Unreadable):
                self._note(record)
                refused = refused or not (self._skips or record.tolerated)
                if refused and len(self._unreadable) >= MOST_BAD_KEPT:
                    return
            elif record and not refused:
                yield record

    def _note(self, record: Unreadable) -> None:
        self._bad_lines += record.line is not None
        self._bad_files += record.line is None
        refused = not (self._skips or record.tolerated)
        if len(self._unreadable) < MOST_BAD_KEPT or refused:
            self._unreadable.append(record)

    def add(self, pieces: list[Ids], dtype: np.dtype[Any], ids_file: BinaryIO, starts_file: BinaryIO) -> None:
        """Writes the ids of some documents."""
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        starts = lengths.cumsum() - lengths + self._tokens
        tokens = np.concatenate(pieces).astype(dtype, copy=False)
        starts_file.write(starts.astype("<i8", copy=False).data)
        ids_file.write(tokens.data)
        self._crc32 = zlib.crc32(tokens.data, self._crc32)
        self._documents += len(pieces)
        self._tokens += len(tokens)
        self._largest_id = max(self._largest_id, int(tokens.max(initial=0)))

    def told(self, tell: Tell, text_bytes: int) -> None:
        """Tells how far it is, now and then."""
        self._text_bytes += text_bytes
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            tell(self._text_bytes, self._tokens)

    def refuse(self) -> None:
        """Raises Refused where a record is not to be left out."""
        refused = [] if self._skips else [record for record in self._unreadable if not record.tolerated]
        if refused:
            raise Refused(refused)

    @property
    def done(self) -> PartDone:
        """The whole part."""
        return PartDone(
            documents=self._documents,
            tokens=self._tokens,
            crc32=self._crc32,
            largest_id=self._largest_id,
            bad_lines=self._bad_lines,
            bad_files=self._bad_files,
            bad=tuple(self._unreadable[:MOST_BAD_KEPT]),
        )


def scan_part(
    ids: MappedIds, starts_in: StartsIn, *, put: Callable[[NDArray[np.int64]], object], tell: Tell
) -> PartDone:
    """Looks through ids that lie in somebody else's file; `put` takes where documents start in it, some at a time.

    A negative id counts as one that is beyond every vocabulary.
    """
    crc32, largest, documents, told_s = 0, -1, 0, time.monotonic()
    for begin in range(0, len(ids), _SCANNED_AT_ONCE):
        some = np.ascontiguousarray(ids[begin : begin + _SCANNED_AT_ONCE])
        crc32 = zlib.crc32(some.view(np.uint8).data, crc32)
        largest = max(largest, int(some.max()) if some.min() >= 0 else _BEYOND)
        found = starts_in(some, begin)
        documents += len(found)
        put(found)
        if time.monotonic() - told_s > _TELL_EVERY_S:
            told_s = time.monotonic()
            tell((begin + len(some)) * some.itemsize, begin + len(some))
    counts = {"bad_lines": 0, "bad_files": 0}
    return PartDone(documents=documents, tokens=len(ids), crc32=crc32, largest_id=largest, bad=(), **counts)


def starts_of_stream(found: NDArray[np.int64], *, tokens: int) -> NDArray[np.int64]:
    """Where documents start in a whole stream: at its beginning, whatever was found there, and nowhere at its end."""
    inside = found[found < tokens]
    return inside if tokens == 0 or (len(inside) and inside[0] == 0) else np.concatenate(([0], inside))


def ids_file(folder: Path, number: int) -> Path:
    """The shard of a part in the folder of the preparation."""
    return folder / f"tokens-{number:05d}.bin"


def starts_file(folder: Path, number: int) -> Path:
    """Where the documents of a part start, until all parts are whole."""
    return folder / PARTS / f"{number:05d}.starts"


@contextlib.contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """A file that is there under its name only once it is whole, and on the disk."""
    partial = file.with_name(f".{file.name}.{os.uname().nodename}-{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
