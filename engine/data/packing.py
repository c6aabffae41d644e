"""From documents to numbered sequences: the token stream, and the one global index over it.

Knows that every sample of a run has a number, and that everything derives from it: the step and
the data rank that read it, its epoch, its place in the corpus. Does not know where documents come
from (corpus.py) or how text becomes ids (tokenizer.py).

The stream is all documents, one after the other. Sample i of an epoch is its tokens
[i * S, i * S + S + 1): S inputs, and the same shifted by one as labels. An epoch has
N = max(1, (T - 1) // S) samples; the tokens after the last whole sample are left out. A corpus
shorter than one sample is read round and round (modulo T).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data.corpus import Record, Unreadable
from engine.data.refused import unreadable_findings
from engine.data.shuffle import shuffled
from engine.data.tokenizer import Ids, Tokenizer, id_dtype
from engine.errors import TitanError

# Enough text at once for a tokenizer to use every core, little enough not to hold a corpus twice.
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The corpus as one array of T token ids, and what was counted on the way.

    `starts` are the places of the documents' first tokens, ascending. `bad_lines` are JSON lines and
    `bad_files` whole files that were left out; documents without text are left out too and counted
    nowhere.
    """

    tokens: Ids
    starts: NDArray[np.int64]
    documents: int
    bad_lines: int
    bad_files: int

    def samples(self, seq_len: int) -> int:
        """N, the samples of one epoch."""
        return max(1, (len(self.tokens) - 1) // seq_len)

    def is_shorter_than_a_sample(self, seq_len: int) -> bool:
        """Whether one sample needs more tokens than there are."""
        return len(self.tokens) < seq_len + 1

    def windows(self, indices: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
        """The seq_len + 1 tokens of each sample, (B,) -> (B, seq_len + 1)."""
        places: NDArray[np.int64] = indices[:, None] * seq_len + np.arange(seq_len + 1)
        if self.is_shorter_than_a_sample(seq_len):
            places %= len(self.tokens)
        return self.tokens[places].astype(np.int64)

    def positions(self, indices: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
        """How far each token of a window is from its document's start, or the window's: (B,) -> (B, seq_len + 1)."""
        starts = self.starts
        if self.is_shorter_than_a_sample(seq_len):
            cycles = np.arange(-(-(seq_len + 1) // len(self.tokens)), dtype=np.int64)
            starts = (cycles[:, None] * len(self.tokens) + starts).ravel()
        begins = indices * seq_len
        bounds = np.searchsorted(starts, [begins, begins + seq_len + 1])
        latest = np.zeros((len(indices), seq_len + 1), dtype=np.int64)
        for row, begin, (first, end) in zip(latest, begins, bounds.T, strict=True):
            found = starts[first:end] - begin
            row[found] = found
        np.maximum.accumulate(latest, axis=1, out=latest)
        return np.subtract(np.arange(seq_len + 1), latest, out=latest)


def token_stream(records: Iterable[Record], tokenizer: Tokenizer, *, skip_unreadable: bool) -> TokenStream:
    """Tokenises a corpus; TitanError D204 names the first records that cannot be read, unless they are skipped."""
    pieces: list[Ids] = []
    waiting: list[str] = []
    waiting_characters = 0
    unreadable: list[Unreadable] = []
    for record in records:
        if isinstance(record, Unreadable):
            unreadable.append(record)
        elif record:
            waiting.append(record)
            waiting_characters += len(record)
        if waiting_characters >= _BATCH_CHARACTERS:
            pieces += tokenizer.encode(waiting)
            waiting, waiting_characters = [], 0
    pieces += tokenizer.encode(waiting)
    refused = [] if skip_unreadable else [record for record in unreadable if not record.tolerated]
    if refused:
        raise TitanError(*unreadable_findings(refused))
    lengths = np.array([0, *(len(piece) for piece in pieces)], dtype=np.int64)
    return TokenStream(
        starts=lengths.cumsum()[:-1],
        tokens=np.concatenate(pieces) if pieces else np.empty(0, dtype=id_dtype(tokenizer.vocab_used)),
        documents=len(pieces),
        bad_lines=sum(record.line is not None for record in unreadable),
        bad_files=sum(record.line is None for record in unreadable),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run is: after `step` steps, `samples` samples have been read, over all data ranks."""

    step: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalIndex:
    """Which samples each step and each data rank read, from the number of the sample in the run alone.

    Step k reads the global_batch numbers after those of step k - 1. Within a step, number
    (accumulation * data_ranks + data_rank) * local_batch + row goes to that row: accumulation
    steps follow each other, and in each of them the ranks' rows do. So the samples of a step depend
    only on the global batch, never on the layout. `start` is where an earlier run stopped, which
    may have had another global batch.
    """

    samples_per_epoch: int
    data_ranks: int
    local_batch: int
    accumulation_steps: int
    repeat: bool
    shuffle_seed: int | None
    start: Position = Position()

    @property
    def global_batch(self) -> int:
        """Samples of one step over all data ranks."""
        return self.data_ranks * self.local_batch * self.accumulation_steps

    @property
    def last_step(self) -> int | None:
        """The last step for which a whole global batch is left; None where the corpus repeats for ever."""
        if self.repeat:
            return None
        return self.start.step + max(0, self.samples_per_epoch - self.start.samples) // self.global_batch

    def position(self, step: int) -> Position:
        """Where the run stands after `step`."""
        assert step >= self.start.step, "a run goes on from where it starts, never back"
        return Position(step=step, samples=self.start.samples + (step - self.start.step) * self.global_batch)

    def sample_numbers(self, step: int, data_rank: int) -> NDArray[np.int64]:
        """Numbers in the run of the samples that one rank reads in one step, (accumulation, row)."""
        assert 0 <= data_rank < self.data_ranks, f"there is no data rank {data_rank} among {self.data_ranks}"
        accumulation = np.arange(self.accumulation_steps, dtype=np.int64)[:, None]
        row = np.arange(self.local_batch, dtype=np.int64)
        first = self.position(step - 1).samples
        return first + (accumulation * self.data_ranks + data_rank) * self.local_batch + row

    def corpus_indices(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample of the corpus behind each number of the run, in the order of the number's epoch."""
        epochs, positions = np.divmod(numbers, self.samples_per_epoch)
        if self.shuffle_seed is None:
            return positions
        return shuffled(positions, epochs=epochs, size=self.samples_per_epoch, seed=self.shuffle_seed)
