"""The parts that a corpus of text is prepared in: each makes one shard.

Knows how large parts are and how one becomes ids. Does not know which process makes it (prepare_pool.py), nor how
files are read (corpus.py). Parts depend on the corpus alone: however many workers make them, the shards are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.data.corpus import corpus_files
from engine.data.hub import hub_rows
from engine.data.parts import Part, part_records, parts
from engine.data.prepare_part import PartDone, Tell, ids_file, starts_file, tokenise_part
from engine.data.prepare_task import Work
from engine.data.prepared import Shard
from engine.data.records import Record
from engine.data.tokenizer import id_dtype

# About 256 MiB of ids, and parts enough for many workers; and never more shards than open quickly.
_LARGEST_BYTES, _SMALLEST_BYTES = 128 << 20, 8 << 20
_FINEST, _MOST_PARTS = 64, 4096


def part_bytes(corpus_bytes: int) -> int:
    """Bytes of a part of a corpus of so many."""
    fine = min(_LARGEST_BYTES, max(_SMALLEST_BYTES, corpus_bytes // _FINEST))
    return max(fine, corpus_bytes // _MOST_PARTS)


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
    """A part of a corpus that is kept in files."""

    part: Part

    @property
    def bytes(self) -> int:
        """What is to be read."""
        return self.part.bytes

    @property
    def files(self) -> tuple[str, ...]:
        """All that is read."""
        return tuple(stretch.file for stretch in self.part.stretches)

    @property
    def name(self) -> str:
        """Where it begins, for people."""
        first = self.part.stretches[0]
        unit = "byte" if self.part.dataset == "jsonl" else "row group"
        return f"{first.file} from {unit} {first.begin:,}" if first.begin else first.file

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        return part_records(self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPart(Tokenised):
    """Some rows of a dataset of the library `datasets`; `fingerprint` is the library's own, of what is in it."""

    part: Part
    fingerprint: str

    @property
    def bytes(self) -> int:
        """What is to be read."""
        return self.part.bytes

    @property
    def files(self) -> tuple[str, ...]:
        """None that are known by their names: the library keeps them."""
        return ()

    @property
    def name(self) -> str:
        """Where it begins, for people."""
        first = self.part.stretches[0]
        return f"{first.file} from row {first.begin + 1:,}"

    def records(self) -> Iterator[Record]:
        """Its documents, and what cannot be read."""
        return part_records(self.part)


def hub_parts(path: str | None, *, text_field: str) -> list[HubPart]:
    """All parts of a dataset in the order of its rows; downloaded first where it is not here. TitanError D209."""
    rows = hub_rows(path, text_field=text_field)
    # There is no public name for it (datasets 2.0 to 5.2).
    fingerprint = str(rows._fingerprint)
    target_bytes = part_bytes(int(rows.data.nbytes))
    cut = parts("huggingface", path, text_field=text_field, target_bytes=target_bytes)
    return [HubPart(part=part, fingerprint=fingerprint) for part in cut]


def text_parts(dataset: str, path: str | None, *, text_field: str) -> list[TextPart]:
    """All parts of a corpus in the order of its documents; TitanError where there is no such corpus."""
    held_bytes = sum(file.stat().st_size for file in corpus_files(dataset, path) if file.exists())
    cut = parts(dataset, path, text_field=text_field, target_bytes=part_bytes(held_bytes))
    return [TextPart(part=part) for part in cut]
