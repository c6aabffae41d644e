"""The token stream: all documents of a corpus, one after the other, cut into samples.

Knows places in the stream: tokens, where documents start, which tokens a sample has. Does not know where tokens come
from (tokenising.py, prepared.py), nor which samples a rank reads when (index.py).

Sample i of an epoch is the tokens [i * S, i * S + S + 1): S inputs, and the same shifted by one as labels. An epoch has
N = max(1, (T - 1) // S) samples; the tokens after the last whole sample are left out. A corpus shorter than one sample
is read round and round (modulo T).

Tokens lie in one or several pieces, arrays in memory or memory-mapped files: nothing here copies more of them than is
asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from engine.data.mapped import MappedIds
from engine.data.records import Unreadable
from engine.data.tokenizer import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """A corpus as T token ids in `pieces`, and what was counted on the way.

    `starts` are the places of the documents' first tokens, ascending, int64. `bad_lines` are JSON lines or rows and
    `bad_files` whole files that were left out, `bad` the first of them; documents without text are left out too and
    counted nowhere. `crc32` is of all ids, as they lie: equal on all ranks, or they do not read the same.
    """

    pieces: tuple[Ids | MappedIds, ...]
    starts: NDArray[np.int64]
    documents: int
    bad_lines: int
    bad_files: int
    crc32: int
    bad: tuple[Unreadable, ...] = ()
    _ends: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.array([*accumulate(len(piece) for piece in self.pieces)], dtype=np.int64))

    @property
    def tokens(self) -> int:
        """T, all tokens."""
        return int(self._ends[-1]) if self.pieces else 0

    def samples(self, seq_len: int) -> int:
        """N, the samples of one epoch."""
        return max(1, (self.tokens - 1) // seq_len)

    def is_shorter_than_a_sample(self, seq_len: int) -> bool:
        """Whether one sample needs more tokens than there are."""
        return self.tokens < seq_len + 1

    def read(self, begin: int, end: int) -> NDArray[np.int64]:
        """A copy of the ids [begin, end) as int64, across pieces; the stream goes round where `end` is beyond it."""
        out = np.empty(end - begin, dtype=np.int64)
        filled, place = 0, begin % max(1, self.tokens)
        while filled < len(out):
            number = int(np.searchsorted(self._ends, place, side="right"))
            first = int(self._ends[number]) - len(self.pieces[number])
            part = self.pieces[number][place - first : place - first + len(out) - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
            place = (place + len(part)) % self.tokens
        return out

    def windows(self, indices: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
        """The seq_len + 1 tokens of each sample, (B,) -> (B, seq_len + 1)."""
        rows = np.empty((len(indices), seq_len + 1), dtype=np.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            row[:] = self.read(index * seq_len, index * seq_len + seq_len + 1)
        return rows

    def positions(self, indices: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
        """How far each token of a window is from its document's start, or the window's: (B,) -> (B, seq_len + 1)."""
        starts = self.starts
        if self.is_shorter_than_a_sample(seq_len):
            cycles = np.arange(-(-(seq_len + 1) // self.tokens), dtype=np.int64)
            starts = (cycles[:, None] * self.tokens + starts).ravel()
        begins = indices * seq_len
        bounds = np.searchsorted(starts, [begins, begins + seq_len + 1])
        latest = np.zeros((len(indices), seq_len + 1), dtype=np.int64)
        for row, begin, (first, end) in zip(latest, begins, bounds.T, strict=True):
            found = starts[first:end] - begin
            row[found] = found
        np.maximum.accumulate(latest, axis=1, out=latest)
        return np.subtract(np.arange(seq_len + 1), latest, out=latest)
