"""The texts of a corpus, looked through beside their tokens: what stands where, and special tokens that are spelt out.

Knows files, lines and rows. Does not know tokens: a special token that a text spells stays text (tokenizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.data.compressed import opened
from engine.data.corpus import SUFFIXES, corpus_files, documents, file_documents
from engine.data.json_lines import text_of_line
from engine.data.reads import Named
from engine.data.records import Meter, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a document stands: a file, and the line or the row of it, from 1, where it holds several."""

    file: str
    line: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the first `documents` of a corpus hold. `spelt`: how many of them spell each name; `place` of the one asked
    for, None where it is not among them, or in no file of the corpus's own.
    """

    documents: int
    spelt: dict[str, int]
    place: Place | None


def look_through(
    named: Named,
    *,
    text_field: str,
    names: Sequence[str],
    document: int,
    most_bytes: int | None = None,
    on_document: Callable[[], None] = lambda: None,
) -> Texts:
    """Reads texts, as far as `most_bytes` of them; `document` is the one whose place is wanted, from 1."""
    spelt = dict.fromkeys(names, 0)
    seen, place = 0, None
    for file, row, in_file, text in _texts(named, text_field, Meter(most_bytes)):
        on_document()
        seen += 1
        for name in names:
            spelt[name] += name in text
        if seen == document and file is not None:
            place = _place(named.dataset, file, row=row, in_file=in_file, text_field=text_field)
    return Texts(documents=seen, spelt=spelt, place=place)


def _texts(named: Named, text_field: str, meter: Meter) -> Iterator[tuple[str | None, int, int, str]]:
    """Documents that have a text: the file, the record in it and which of its documents that is, both from 1."""
    groups: Iterator[tuple[str | None, Iterator[Record]]]
    if named.dataset in SUFFIXES:
        files = corpus_files(named.dataset, named.path)
        groups = ((str(file), file_documents(named.dataset, [file], meter, text_field=text_field)) for file in files)
    else:
        file = named.path if named.dataset == "huggingface" else None
        groups = iter([(file, documents(named.dataset, named.path, text_field=text_field))])
    for name, records in groups:
        in_file = 0
        for row, record in enumerate(records, start=1):
            if isinstance(record, str) and record:
                in_file += 1
                yield name, row, in_file, record


def _place(dataset: str, file: str, *, row: int, in_file: int, text_field: str) -> Place:
    if dataset == "jsonl":
        return Place(file=file, line=_line(Path(file), in_file, text_field))
    return Place(file=file) if dataset == "text" else Place(file=file, row=row)


def _line(path: Path, document: int, text_field: str) -> int:
    """The line of a document among those of a file of JSON lines."""
    with opened(path) as file:
        for number, raw in enumerate(file, start=1):
            line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            document -= bool(line and text_of_line(line, text_field)[0])
            if document == 0:
                return number
    raise AssertionError(f"{path} has no such document any more")
