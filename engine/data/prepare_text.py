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

from engine.data.corpus import corpus_files, file_documents
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
class TextPart:
    """Some files of a corpus, one after the other."""

    dataset: str
    files: tuple[str, ...]
    bytes: int
    text_field: str

    @property
    def name(self) -> str:
        """Where it begins, for people."""
        return self.files[0]

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        return file_documents(self.dataset, [Path(file) for file in self.files], Meter(), text_field=self.text_field)

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


def text_parts(dataset: str, path: str | None, *, text_field: str) -> list[TextPart]:
    """All parts of a corpus in the order of its documents; TitanError where there is no such corpus."""
    files = [(str(file), os.stat(file).st_size if file.exists() else 0) for file in corpus_files(dataset, path)]
    target = part_bytes(sum(size for _, size in files))
    parts: list[TextPart] = []
    group: list[str] = []
    size_bytes = 0
    for file, size in files:
        group.append(file)
        size_bytes += size
        if size_bytes >= target:
            parts.append(TextPart(dataset=dataset, files=tuple(group), bytes=size_bytes, text_field=text_field))
            group, size_bytes = [], 0
    if group:
        parts.append(TextPart(dataset=dataset, files=tuple(group), bytes=size_bytes, text_field=text_field))
    return parts
