"""A look at the beginning of a corpus, within bytes and seconds, before anything is started.

Knows how many documents and how many records that cannot be read are in what it reads, and how much more there is.
Reads as a run does (corpus.py); does not know tokens, which take longer, nor whether there are enough (loader.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from engine.data.compressed import SUFFIXES as COMPRESSED
from engine.data.corpus import JSON_LINES_SUFFIXES, corpus_files, file_documents
from engine.data.records import Meter, Unreadable
from engine.data.refused import nothing_to_read, unreadable_findings
from engine.errors import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What the first `read_bytes` of the `held_bytes` of a corpus hold; `whole` where that is all of it.

    `packed`: the bytes that are held are compressed, those that are read are not. Documents without text are left out,
    as in a run. `refusals`: what a run is refused with for what was seen.
    """

    files: int
    documents: int
    bad_lines: int
    bad_files: int
    read_bytes: int
    held_bytes: int
    whole: bool
    packed: bool = False
    refusals: tuple[Finding, ...] = ()


def glance(
    dataset: str,
    dataset_path: str | None,
    *,
    skip_unreadable: bool,
    most_bytes: int,
    most_s: float,
    text_field: str = "text",
) -> Glance:
    """Looks at the files of a corpus; TitanError D202 where there are none to look at.

    `most_s` ends the reading, not the listing of a folder, which is as long as its files are many.
    """
    files = corpus_files(dataset, dataset_path)
    held_bytes = sum(os.path.getsize(file) for file in files if os.path.exists(file))
    packed = dataset == "parquet" or any(file.suffix.lower() in COMPRESSED for file in files)
    until_s = time.monotonic() + most_s
    meter, found, late = Meter(most_bytes), 0, False
    unreadable: list[Unreadable] = []
    records = file_documents(dataset, files, meter, text_field=text_field)
    for record in records:
        if isinstance(record, Unreadable):
            unreadable.append(record)
        else:
            found += bool(record)
        if time.monotonic() > until_s:
            late = next(records, None) is not None
            break
    whole = not late and (meter.left > 0 or (not packed and meter.read_bytes >= held_bytes))
    refusals: list[Finding] = []
    if whole and not found and (skip_unreadable or _is_of_another_kind(unreadable)):
        first = unreadable[0] if unreadable else None
        refusals = [nothing_to_read(dataset, dataset_path, unreadable=len(unreadable), first=first)]
    elif not skip_unreadable:
        refusals = unreadable_findings(unreadable)
    return Glance(
        files=len(files),
        documents=found,
        bad_lines=sum(record.line is not None for record in unreadable),
        bad_files=sum(record.line is None for record in unreadable),
        read_bytes=meter.read_bytes,
        held_bytes=held_bytes,
        whole=whole,
        packed=packed,
        refusals=tuple(refusals),
    )


def _is_of_another_kind(unreadable: list[Unreadable]) -> bool:
    """Whether what a corpus without documents holds is nothing, or lines of something else: told once, not each."""
    is_one_bad_line = len(unreadable) == 1 and unreadable[0].file.lower().endswith(JSON_LINES_SUFFIXES)
    return not is_one_bad_line and all(record.line is not None for record in unreadable)
