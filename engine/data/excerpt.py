"""The first tokens of a sample as text: the documents in it, positions, and labels that are masked.

Knows a sample as the model gets it, and the stream that it is cut from. Does not know which sample is shown, nor how.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.data.batch import IGNORE
from engine.data.stream import TokenStream
from engine.data.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens [begin, end) of a sample that are of one document.

    `document` counts from 1 in the order of its corpus, `document_token` is where in it the piece begins, of
    `document_tokens`. `positions` are the first and the last that the model gets, `masked_labels` the tokens of the
    sample whose label does not count.
    """

    begin: int
    end: int
    document: int
    document_token: int
    document_tokens: int
    positions: tuple[int, int]
    masked_labels: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sample as the model gets it, (S,) each, and where it is from: the `sample`-th of its stream."""

    sample: int
    tokens_S: NDArray[np.int64]
    labels_S: NDArray[np.int64]
    positions_S: NDArray[np.int64] | None


def excerpt(row: Row, stream: TokenStream, tokenizer: Tokenizer, *, tokens: int) -> tuple[Piece, ...]:
    """The first `tokens` of a sample, document by document."""
    seq_len = len(row.tokens_S)
    shown = min(tokens, seq_len)
    first = row.sample * seq_len
    since_start = stream.positions(np.array([row.sample]), seq_len)[0][:shown]
    borders = [*np.flatnonzero(since_start == 0).tolist(), shown] if shown else []
    positions_S = np.arange(seq_len) if row.positions_S is None else row.positions_S
    masked = np.flatnonzero(row.labels_S[:shown] == IGNORE)
    pieces = []
    for begin, end in pairwise(borders):
        place = (first + begin) % stream.tokens
        number = int(np.searchsorted(stream.starts, place, side="right"))
        start = int(stream.starts[number - 1])
        after = int(stream.starts[number]) if number < len(stream.starts) else stream.tokens
        pieces.append(
            Piece(
                begin=begin,
                end=end,
                document=number,
                document_token=place - start,
                document_tokens=after - start,
                positions=(int(positions_S[begin]), int(positions_S[end - 1])),
                masked_labels=tuple(masked[(masked >= begin) & (masked < end)].tolist()),
                text=tokenizer.decode(row.tokens_S[begin:end].tolist()),
            )
        )
    return tuple(pieces)
