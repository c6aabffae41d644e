"""From documents to one stream of tokens in memory.

Knows how records become token ids, a batch of texts at a time, and what becomes of those that cannot be read. Does not
know where documents come from (corpus.py), how text becomes ids (tokenizer.py) or what is written to disk (prepare.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from engine.data.records import MOST_BAD_KEPT, Record, Unreadable
from engine.data.refused import unreadable_findings
from engine.data.stream import TokenStream
from engine.data.tokenizer import Tokenizer, id_dtype
from engine.errors import TitanError

# Enough text at once for a tokenizer to use every core, little enough not to hold a corpus twice.
_BATCH_CHARACTERS = 1 << 20


def token_stream(records: Iterable[Record], tokenizer: Tokenizer, *, skip_unreadable: bool) -> TokenStream:
    """Tokenises a corpus; TitanError D204 names the first records that cannot be read, unless they are skipped."""
    unreadable: list[Unreadable] = []
    pieces = [ids for texts in batches_of(_texts(records, unreadable)) for ids in tokenizer.encode(texts)]
    refused = [] if skip_unreadable else [record for record in unreadable if not record.tolerated]
    if refused:
        raise TitanError(*unreadable_findings(refused))
    lengths = np.array([0, *(len(piece) for piece in pieces)], dtype=np.int64)
    tokens = np.concatenate(pieces) if pieces else np.empty(0, dtype=id_dtype(tokenizer.vocab_used))
    return TokenStream(
        starts=lengths.cumsum()[:-1],
        pieces=(tokens,),
        crc32=zlib.crc32(tokens.data),
        documents=len(pieces),
        bad_lines=sum(record.line is not None for record in unreadable),
        bad_files=sum(record.line is None for record in unreadable),
        bad=tuple(unreadable[:MOST_BAD_KEPT]),
    )


def batches_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in as many at once as a tokenizer takes well, in their order."""
    waiting: list[str] = []
    waiting_characters = 0
    for text in texts:
        waiting.append(text)
        waiting_characters += len(text)
        if waiting_characters >= _BATCH_CHARACTERS:
            yield waiting
            waiting, waiting_characters = [], 0
    if waiting:
        yield waiting


def _texts(records: Iterable[Record], unreadable: list[Unreadable]) -> Iterator[str]:
    """The documents that have a text; what cannot be read is put aside."""
    for record in records:
        if isinstance(record, Unreadable):
            unreadable.append(record)
        elif record:
            yield record
