"""The files of whole parts become those of one prepared folder.

Knows how counts, CRCs and starts of parts are joined, in the order of documents. Does not know how parts were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from engine.data.crc import combined
from engine.data.prepare_part import PartDone, starts_file, starts_of_stream, written
from engine.data.prepared import STARTS, PreparedIndex
from engine.data.records import MOST_BAD_KEPT
from engine.data.refused import nothing_to_read
from engine.data.survey import Survey
from engine.errors import TitanError


def joined(corpus: Survey, folder: Path, parts: Sequence[PartDone]) -> PreparedIndex:
    """Writes the starts of all documents, and gives the index that is to be written last."""
    tokens = sum(part.tokens for part in parts)
    shards = [part.shard(n, parts[n], corpus.tokenizer.vocab_used) for n, part in enumerate(corpus.parts)]
    crc32 = 0
    for part, shard in zip(parts, shards, strict=True):
        crc32 = combined(crc32, part.crc32, part.tokens * np.dtype(shard.dtype).itemsize)
    documents, longest = _join_starts(folder, parts, tokens)
    return PreparedIndex(
        tokenizer=corpus.tokenizer,
        made_from=corpus.made_from,
        documents=documents,
        tokens=tokens,
        bad_lines=sum(part.bad_lines for part in parts),
        bad_files=sum(part.bad_files for part in parts),
        bad=tuple(islice((bad for part in parts for bad in part.bad), MOST_BAD_KEPT)),
        longest_document=longest,
        largest_id=max((part.largest_id for part in parts), default=-1),
        crc32=crc32,
        shards=tuple(shard for shard in shards if shard.tokens),
    )


def _join_starts(folder: Path, parts: Sequence[PartDone], tokens: int) -> tuple[int, int]:
    """Writes the starts of the stream; how many there are, and the tokens of the longest document."""
    documents, longest, begin, last = 0, 0, 0, 0
    with written(folder / STARTS) as file:
        for number, part in enumerate(parts):
            found = np.fromfile(starts_file(folder, number), dtype="<i8") + begin
            found = starts_of_stream(found, tokens=tokens) if documents == 0 and part.tokens else found[found < tokens]
            if len(found):
                longest = max(longest, int(np.diff(found, prepend=last).max()))
                documents, last = documents + len(found), int(found[-1])
            file.write(found.astype("<i8", copy=False).tobytes())
            begin += part.tokens
    return documents, max(longest, tokens - last)


def refuse_nothing(index: PreparedIndex, corpus: Survey) -> None:
    """Raises TitanError D205 where there is no text in a corpus."""
    if index.documents == 0:
        made = index.made_from
        bad = index.bad_lines + index.bad_files
        found = nothing_to_read(made.dataset, made.path, unreadable=bad, first=index.bad[0] if index.bad else None)
        raise TitanError(replace(found, key=corpus.key))
