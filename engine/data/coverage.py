"""How far a corpus goes: the lengths of its documents, what sequences cut of them, and how much of it a run reads.

Knows a stream of tokens and how many of its samples are read. Does not know where tokens come from, nor what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data.stream import TokenStream

_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the documents of a corpus, their special tokens with them.

    `longest_document` counts from 1 in the order of the corpus, and begins at `longest_begin` among all tokens.
    """

    mean: float
    median: float
    shortest: int
    longest: int
    longest_document: int
    longest_begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What becomes of documents where the stream is cut into sequences of `seq_len`, in the order of the corpus.

    `cut_documents` are read, and no sequence holds them whole; `longer_documents` are longer than a sequence. The last
    `left_out_tokens` of every epoch make no whole sequence: `left_out_documents` lie in them whole. `document_starts`
    are labels of an epoch that are the first token of a document: with data.document_mask they are masked.
    """

    cut_documents: int
    longer_documents: int
    left_out_tokens: int
    left_out_documents: int
    document_starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a run reads of a corpus. `different_samples`: each counted once; `epochs`: passes over all of it."""

    samples: int
    different_samples: int
    tokens: int
    epochs: float


def lengths_of(stream: TokenStream) -> Lengths:
    """The lengths of a stream that has documents."""
    lengths = np.empty(len(stream.starts), dtype=np.int64)
    for first, begins, ends in _documents(stream):
        lengths[first : first + len(begins)] = ends - begins
    longest = int(lengths.argmax())
    return Lengths(
        mean=stream.tokens / len(lengths),
        median=float(np.median(lengths)),
        shortest=int(lengths.min()),
        longest=int(lengths[longest]),
        longest_document=longest + 1,
        longest_begin=int(stream.starts[longest]),
    )


def cut_of(stream: TokenStream, seq_len: int) -> Cut:
    """What sequences cut. A corpus shorter than one is read round and round: nothing of it is cut or left out."""
    short, samples = stream.is_shorter_than_a_sample(seq_len), stream.samples(seq_len)
    # The last label of an epoch is at `last`: what lies behind it is never read.
    last = samples * seq_len
    cut = longer = left_out = starts = 0
    for _, begins, ends in _documents(stream):
        longer += int(np.count_nonzero(ends - begins > seq_len))
        if short:
            continue
        last_of_window = (np.minimum(begins // seq_len, samples - 1) + 1) * seq_len
        cut += int(np.count_nonzero((ends - 1 > last_of_window) & (begins <= last)))
        left_out += int(np.count_nonzero(begins > last))
        starts += int(np.count_nonzero((begins > 0) & (begins <= last)))
    if short:
        cycles, rest = divmod(seq_len, stream.tokens)
        starts = cycles * len(stream.starts) + int(np.searchsorted(stream.starts, rest, side="right")) - 1
    return Cut(
        cut_documents=cut,
        longer_documents=longer,
        left_out_tokens=0 if short else stream.tokens - last - 1,
        left_out_documents=left_out,
        document_starts=starts,
    )


def _documents(stream: TokenStream) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Where documents begin and end, many at once but not all; and the number of the first of them, from 0."""
    for first in range(0, len(stream.starts), _AT_ONCE):
        some = np.asarray(stream.starts[first : first + _AT_ONCE + 1])
        ends = some[1:] if len(some) > _AT_ONCE else np.append(some[1:], stream.tokens)
        yield first, some[:_AT_ONCE], ends


def taken_of(stream: TokenStream, seq_len: int, *, samples: int) -> Taken:
    """What a run reads that takes so many samples of a stream."""
    size = stream.samples(seq_len)
    epochs = samples * seq_len / stream.tokens if stream.is_shorter_than_a_sample(seq_len) else samples / size
    return Taken(samples=samples, different_samples=min(samples, size), tokens=samples * seq_len, epochs=epochs)


def counted(
    stream: TokenStream, ids: Sequence[int], *, tokens: int, on_tokens: Callable[[int], None]
) -> dict[int, int]:
    """How often each of `ids` is among the first `tokens`, which are read; `on_tokens` is called with how many were."""
    found = dict.fromkeys(ids, 0)
    for begin in range(0, tokens, _AT_ONCE):
        some = stream.read(begin, min(tokens, begin + _AT_ONCE))
        for id_ in found:
            found[id_] += int(np.count_nonzero(some == id_))
        on_tokens(len(some))
    return found
