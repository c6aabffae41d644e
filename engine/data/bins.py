"""Token ids that others have written, as a stream: where documents start, the CRC, and the largest id.

Knows what tells documents apart, and how ids are looked through. Nothing is copied: ids stay where they are and are
mapped. Does not know the formats (bin_formats.py), nor how a large file is looked through by several processes
(prepare.py).

Megatron's index says where documents start. Elsewhere the tokenizer's special tokens do: where the first file begins
with BOS, each BOS begins a document; else one begins after each EOS; without such tokens all is one document.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.bin_formats import Bin, bin_files, finding, megatron_tables
from engine.data.crc import combined
from engine.data.mapped import MappedIds
from engine.data.prepare_part import PartDone, StartsIn, Tell, scan_part, starts_file, starts_of_stream, written
from engine.data.prepare_task import Work
from engine.data.prepared import Shard, beyond_vocabulary
from engine.data.stream import TokenStream
from engine.data.tokenizer import Tokenizer
from engine.errors import TitanError

_PART_IDS = 1 << 27


def bin_stream(path: str | None, *, key: str, tokenizer: Tokenizer, vocab_size: int | None = None) -> TokenStream:
    """Ids of others as a stream. All of them are read once, for where documents start, their CRC and the largest.

    Raises TitanError as `bin_files`, and D223 where an id lies beyond `vocab_size`.
    """
    parts = bin_parts(bin_files(path, key=key), tokenizer)
    starts: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    crc32, largest, tokens = 0, -1, 0
    for part in parts:
        found: list[NDArray[np.int64]] = []
        done = scan_part(part.ids, part.starts_in, put=found.append, tell=_ignore)
        starts += [some + tokens for some in found]
        crc32 = combined(crc32, done.crc32, part.bytes)
        largest, tokens = max(largest, done.largest_id), tokens + done.tokens
    if vocab_size is not None and (wrong := beyond_vocabulary(f"the tokens in {path}", largest, vocab_size)):
        raise TitanError(*wrong)
    all_starts = starts_of_stream(np.concatenate(starts), tokens=tokens)
    return TokenStream(
        pieces=tuple(part.ids for part in parts),
        starts=all_starts,
        documents=len(all_starts),
        bad_lines=0,
        bad_files=0,
        crc32=crc32,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BinPart:
    """Some ids of a file, and what tells its documents apart.

    `files`: the file, and the index beside it where there is one; `file_bytes` is the size of the former.
    """

    ids: MappedIds
    starts_in: StartsIn
    files: tuple[str, ...]
    file_bytes: int

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return f"{self.ids.file} from byte {self.ids.offset_bytes:,}"

    @property
    def itemsize(self) -> int:
        """Bytes of one id."""
        return np.dtype(self.ids.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Bytes that are read of it."""
        return self.itemsize * len(self.ids)

    def shard(self, number: int, done: PartDone, vocab_used: int) -> Shard:  # noqa: ARG002 - as text's parts
        """What the index says of it."""
        return Shard(
            file=self.ids.file,
            bytes=self.file_bytes,
            dtype=self.ids.dtype,
            offset_bytes=self.ids.offset_bytes,
            tokens=done.tokens,
        )

    def make(self, work: Work, number: int, tell: Tell) -> PartDone:
        """Writes where its documents start; its ids stay where they are."""
        with written(starts_file(work.folder, number)) as file:
            return scan_part(
                self.ids,
                self.starts_in,
                put=lambda found: file.write(found.astype("<i8", copy=False).tobytes()),
                tell=tell,
            )


def bin_parts(files: list[Bin], tokenizer: Tokenizer, *, part_ids: int = _PART_IDS) -> list[BinPart]:
    """The ids of all files in pieces that are looked through one by one."""
    by_tokens = _delimiter(files, tokenizer)
    parts: list[BinPart] = []
    for file in files:
        itemsize = np.dtype(file.ids.dtype).itemsize
        for begin in range(0, len(file.ids), part_ids):
            place = file.ids.offset_bytes + begin * itemsize
            ids = replace(file.ids, offset_bytes=place, count=min(part_ids, len(file.ids) - begin))
            starts_in: StartsIn = by_tokens
            if file.index is not None:
                starts_in = ByIndex(index=file.index, itemsize=itemsize, part_begin=begin)
            parts.append(BinPart(ids=ids, starts_in=starts_in, files=file.files, file_bytes=file.bytes))
    return parts


def _ignore(text_bytes: int, tokens: int) -> None:
    """Nobody waits for so little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTokens:
    """Documents begin at one id, or after another; None: there is no such id."""

    first: int | None = None
    last: int | None = None

    def __call__(self, ids: NDArray[Any], begin: int) -> NDArray[np.int64]:
        """Places in the part where documents start, of `ids` that are `begin` places into it."""
        if self.first is not None:
            return np.flatnonzero(ids == self.first) + begin
        return np.flatnonzero(ids == self.last) + begin + 1 if self.last is not None else np.empty(0, dtype=np.int64)


def _delimiter(files: list[Bin], tokenizer: Tokenizer) -> ByTokens:
    begins_with = next((int(file.ids[:1][0]) for file in files if len(file.ids)), None)
    if tokenizer.bos_id is not None and begins_with == tokenizer.bos_id:
        return ByTokens(first=tokenizer.bos_id)
    return ByTokens(last=tokenizer.eos_id)


@dataclass(frozen=True, kw_only=True)
class ByIndex:
    """Documents begin where Megatron's index says. `part_begin`: ids of the file before the part."""

    index: str
    itemsize: int
    part_begin: int

    def __call__(self, ids: NDArray[Any], begin: int) -> NDArray[np.int64]:
        """Places in the part where documents start; TitanError D224 where they do not follow each other in the file."""
        first = self.part_begin + begin
        lengths, places, documents = self._tables
        count = len(documents) - 1

        def start(document: int) -> int:
            sequence = int(documents[document])
            return int(places[sequence]) // self.itemsize if sequence < len(places) else first + len(ids)

        since = bisect_left(range(count), first, key=start)
        until = bisect_left(range(count), first + len(ids), key=start, lo=since)
        sequences = documents[since:until].astype(np.int64)
        sequences = sequences[sequences < len(places)]
        if until > since:
            here = slice(int(documents[since]), int(documents[until]))
            expected = places[here.start] + np.cumsum(lengths[here].astype(np.int64)) * self.itemsize
            if not np.array_equal(places[here][1:], expected[:-1]):
                message = f"the sequences of {self.index} do not follow each other in the file of ids"
                fix = "write it anew with Megatron's preprocess_data.py, or merge_datasets.py"
                raise TitanError(finding("D224", "training.dataset_path", message, fix))
        # A document without tokens starts where the next one does.
        return np.unique(places[sequences] // self.itemsize) - self.part_begin

    @cached_property
    def _tables(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return megatron_tables(self.index)[1:]
