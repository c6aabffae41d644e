"""The parts that a corpus of text is prepared in: each makes one shard.

Knows how large parts are and how one becomes ids. Does not know which process makes it (prepare_pool.py), nor how
files are read (corpus.py). Parts depend on the corpus alone: however many workers make them, the shards are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.data.compressed import SUFFIXES as COMPRESSED
from engine.data.corpus import corpus_files, file_documents
from engine.data.hub import hub_records, hub_rows
from engine.data.line_ranges import json_lines_between
from engine.data.prepare_part import PartDone, Tell, ids_file, starts_file, tokenise_part
from engine.data.prepare_task import Work
from engine.data.prepared import Shard
from engine.data.records import Meter, Record
from engine.data.tokenizer import id_dtype

# About 256 MiB of ids, and parts enough for many workers; and never more shards than open quickly.
_LARGEST_BYTES, _SMALLEST_BYTES = 128 << 20, 8 << 20
_FINEST, _MOST_PARTS = 64, 4096


def part_bytes(corpus_bytes: int) -> int:
    """Bytes of a part of a corpus of so many."""
    fine = min(_LARGEST_BYTES, max(_SMALLEST_BYTES, corpus_bytes // _FINEST))
    return max(fine, corpus_bytes // _MOST_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Bytes of a file that belong to a part; `end` None: all of it."""

    file: str
    begin: int = 0
    end: int | None = None


class Tokenised:
    """A part whose records become a shard."""

    __slots__ = ()

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        raise NotImplementedError

    def shard(self, number: int, done: PartDone, vocab_used: int) -> Shard:
        """What the index says of it."""
        dtype = np.dtype(id_dtype(vocab_used)).newbyteorder("<")
        return Shard(
            file=ids_file(Path(), number).name,
            bytes=done.tokens * dtype.itemsize,
            dtype=dtype.str,
            offset_bytes=0,
            tokens=done.tokens,
        )

    def make(self, work: Work, number: int, tell: Tell) -> PartDone:
        """Writes its shard and where its documents start."""
        return tokenise_part(
            self.records(),
            work.encoder,
            ids=ids_file(work.folder, number),
            starts=starts_file(work.folder, number),
            skip_unreadable=work.skip_unreadable,
            tell=tell,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart(Tokenised):
    """Some files of a corpus one after the other, or a stretch of a large one."""

    dataset: str
    stretches: tuple[Stretch, ...]
    bytes: int
    text_field: str

    @property
    def files(self) -> tuple[str, ...]:
        """All that is read."""
        return tuple(stretch.file for stretch in self.stretches)

    @property
    def name(self) -> str:
        """Where it begins, for people."""
        first = self.stretches[0]
        return f"{first.file} from byte {first.begin:,}" if first.begin else first.file

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        for stretch in self.stretches:
            path = Path(stretch.file)
            if stretch.end is None:
                yield from file_documents(self.dataset, [path], Meter(), text_field=self.text_field)
            else:
                yield from json_lines_between(path, stretch.begin, stretch.end, text_field=self.text_field)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPart(Tokenised):
    """Some rows of a dataset of the library `datasets`; `fingerprint` is the library's own, of what is in it."""

    path: str
    fingerprint: str
    first: int
    rows: int
    bytes: int
    text_field: str

    @property
    def files(self) -> tuple[str, ...]:
        """None that are known by their names: the library keeps them."""
        return ()

    @property
    def name(self) -> str:
        """Where it begins, for people."""
        return f"{self.path} from row {self.first + 1:,}"

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        rows = hub_rows(self.path, text_field=self.text_field)
        some = rows.select(range(self.first, self.first + self.rows))
        return hub_records(some, self.path, self.text_field, before=self.first)


def hub_parts(path: str | None, *, text_field: str) -> list[HubPart]:
    """All parts of a dataset in the order of its rows; downloaded first where it is not here. TitanError D209."""
    rows = hub_rows(path, text_field=text_field)
    count, held_bytes = len(rows), int(rows.data.nbytes)
    step = max(1, -(-count * part_bytes(held_bytes) // max(1, held_bytes)))
    return [
        HubPart(
            path=str(path),
            # There is no public name for it (datasets 2.0 to 5.2).
            fingerprint=str(rows._fingerprint),
            first=first,
            rows=min(step, count - first),
            bytes=held_bytes * min(step, count - first) // count,
            text_field=text_field,
        )
        for first in range(0, count, step)
    ]


def text_parts(dataset: str, path: str | None, *, text_field: str) -> list[TextPart]:
    """All parts of a corpus in the order of its documents; TitanError where there is no such corpus."""
    files = [(str(file), os.stat(file).st_size if file.exists() else 0) for file in corpus_files(dataset, path)]
    target = part_bytes(sum(size_bytes for _, size_bytes in files))
    groups: list[tuple[tuple[Stretch, ...], int]] = []
    waiting: list[Stretch] = []
    waiting_bytes = 0
    for file, size_bytes in files:
        splits = dataset == "jsonl" and size_bytes > target and not file.lower().endswith(COMPRESSED)
        for begin in range(0, size_bytes if splits else 1, target):
            end = min(begin + target, size_bytes) if splits else None
            waiting.append(Stretch(file=file, begin=begin, end=end))
            waiting_bytes += size_bytes if end is None else end - begin
            if waiting_bytes >= target:
                groups.append((tuple(waiting), waiting_bytes))
                waiting, waiting_bytes = [], 0
    if waiting:
        groups.append((tuple(waiting), waiting_bytes))
    return [
        TextPart(dataset=dataset, stretches=stretches, bytes=held_bytes, text_field=text_field)
        for stretches, held_bytes in groups
    ]
