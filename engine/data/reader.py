"""From the number of a step to its batches: what the training process and every data worker do alike.

Knows the index and the streams, and keeps nothing between calls. Does not know the config, nor how streams came to be
(loader.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data.batch import IGNORE, Batch
from engine.data.index import GlobalIndex
from engine.data.stream import TokenStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One data rank's view of the streams of all corpora, in the order of the index."""

    index: GlobalIndex
    streams: tuple[TokenStream, ...]
    data_rank: int
    seq_len: int
    document_mask: bool

    def batches(self, step: int) -> list[Batch]:
        """The rank's part of `step` (from 1), one batch an accumulation step."""
        corpora, samples = self.index.places(self.index.sample_numbers(step, self.data_rank))
        return [self.batch(*rows) for rows in zip(corpora, samples, strict=True)]

    def batch(self, corpora_B: NDArray[np.int64], samples_B: NDArray[np.int64]) -> Batch:
        """The rows of one accumulation step, each from its corpus."""
        shape = (len(samples_B), self.seq_len + 1)
        windows, positions = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for corpus, stream in enumerate(self.streams):
            here = corpora_B == corpus
            windows[here] = stream.windows(samples_B[here], self.seq_len)
            if self.document_mask:
                positions[here] = stream.positions(samples_B[here], self.seq_len)
        # Copies: a single row of either is contiguous as it is, and both would be the same memory.
        tokens_BS, labels_BS = windows[:, :-1].copy(), windows[:, 1:].copy()
        if not self.document_mask:
            return Batch(tokens_BS=tokens_BS, labels_BS=labels_BS)
        labels_BS[positions[:, 1:] == 0] = IGNORE
        return Batch(tokens_BS=tokens_BS, labels_BS=labels_BS, positions_BS=positions[:, :-1].copy())
