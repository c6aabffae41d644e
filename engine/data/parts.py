"""The parts of a corpus, for several processes to read: one after the other they are what `documents` reads.

Knows where a corpus can be cut: between files, lines, row groups of tables and rows of datasets; a compressed file can
not. Parts depend on the corpus and their size alone. Does not know tokens, nor which process reads which part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from engine.data.compressed import SUFFIXES as COMPRESSED
from engine.data.corpus import SUFFIXES, corpus_files, documents, file_documents
from engine.data.hub import hub_records, hub_rows
from engine.data.line_ranges import json_lines_between
from engine.data.records import Meter, Record
from engine.data.tables import parquet_between, row_groups_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What of a file belongs to a part, `bytes` of it: all where `end` is None, else [begin, end).

    Those are bytes in which lines begin (jsonl), row groups (parquet) or rows (huggingface, of a dataset `file`).
    """

    file: str
    begin: int = 0
    end: int | None = None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Stretches of a corpus, one after the other; it can be sent to a process. `stdlib` is one part without any."""

    dataset: str
    text_field: str
    stretches: tuple[Stretch, ...]

    @property
    def bytes(self) -> int:
        """About how much there is to be read, as it is kept; 0 where that is not known."""
        return sum(stretch.bytes for stretch in self.stretches)


def parts(dataset: str, path: str | None, *, text_field: str = "text", target_bytes: int) -> list[Part]:
    """All parts of a corpus in the order of its documents, of at least `target_bytes` where there is as much left.

    TitanError as `documents`.
    """
    found: Iterable[Stretch]
    if dataset in SUFFIXES:
        files = corpus_files(dataset, path)
        # Nothing is read yet; where a package is missing, it is told now.
        file_documents(dataset, files, Meter(), text_field=text_field)
        found = (stretch for file in files for stretch in _stretches(dataset, file, target_bytes))
    elif dataset == "huggingface":
        found = _of_rows(path, text_field, target_bytes)
    else:
        documents(dataset, path, text_field=text_field)
        return [Part(dataset=dataset, text_field=text_field, stretches=())]
    groups = _grouped(found, target_bytes)
    return [Part(dataset=dataset, text_field=text_field, stretches=stretches) for stretches in groups]


def part_records(part: Part) -> Iterator[Record]:
    """The documents of a part, and what cannot be read, with the places that they have in the whole corpus."""
    if not part.stretches:
        yield from documents(part.dataset, None, text_field=part.text_field)
    for stretch in part.stretches:
        yield from _records(part.dataset, stretch, part.text_field)


def _records(dataset: str, stretch: Stretch, text_field: str) -> Iterator[Record]:
    path, begin, end = Path(stretch.file), stretch.begin, stretch.end
    if end is None:
        return file_documents(dataset, [path], Meter(), text_field=text_field)
    if dataset == "jsonl":
        return json_lines_between(path, begin, end, text_field=text_field)
    if dataset == "parquet":
        return parquet_between(path, begin, end, column=text_field)
    rows = hub_rows(stretch.file, text_field=text_field).select(range(begin, end))
    return hub_records(rows, stretch.file, text_field, before=begin)


def _stretches(dataset: str, file: Path, target_bytes: int) -> list[Stretch]:
    """A file, or what it can be cut into where it is larger than a part."""
    size_bytes = _readable_bytes(file)
    bounds: list[int] = []
    if size_bytes > target_bytes and dataset == "jsonl" and not file.name.lower().endswith(COMPRESSED):
        bounds = [*range(0, size_bytes, target_bytes), size_bytes]
    elif size_bytes > target_bytes and dataset == "parquet":
        return _of_row_groups(file, size_bytes, target_bytes) or [Stretch(file=str(file), bytes=size_bytes)]
    cut = [Stretch(file=str(file), begin=begin, end=end, bytes=end - begin) for begin, end in pairwise(bounds)]
    return cut or [Stretch(file=str(file), bytes=size_bytes)]


def _readable_bytes(file: Path) -> int:
    """The size of a file; 0 where it cannot be opened, which is told once, by the part that it is in."""
    try:
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_size
    except OSError:
        return 0


def _of_row_groups(file: Path, size_bytes: int, target_bytes: int) -> list[Stretch]:
    """Runs of row groups, each with its share of the file's bytes by what they hold unpacked."""
    groups = row_groups_bytes(file)
    ends = [size_bytes * held // max(1, sum(groups)) for held in accumulate(groups)]
    cut: list[Stretch] = []
    begin = before = 0
    for group, end_bytes in enumerate(ends, start=1):
        if end_bytes - before >= target_bytes or group == len(ends):
            cut.append(Stretch(file=str(file), begin=begin, end=group, bytes=end_bytes - before))
            begin, before = group, end_bytes
    return cut


def _of_rows(path: str | None, text_field: str, target_bytes: int) -> Iterator[Stretch]:
    """Rows of a dataset of the library; downloaded first where it is not here. TitanError D209."""
    rows = hub_rows(path, text_field=text_field)
    count, held_bytes = len(rows), int(rows.data.nbytes)
    step = max(1, -(-count * target_bytes // max(1, held_bytes)))
    for begin in range(0, count, step):
        end = min(begin + step, count)
        share = held_bytes * end // count - held_bytes * begin // count
        yield Stretch(file=str(path), begin=begin, end=end, bytes=share)


def _grouped(stretches: Iterable[Stretch], target_bytes: int) -> Iterator[tuple[Stretch, ...]]:
    """Stretches one after the other, as many as make a part."""
    waiting: list[Stretch] = []
    waiting_bytes = 0
    for stretch in stretches:
        waiting.append(stretch)
        waiting_bytes += stretch.bytes
        if waiting_bytes >= target_bytes:
            yield tuple(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield tuple(waiting)
