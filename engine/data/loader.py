"""The batches of one data rank, by step.

Knows how corpus, tokenizer, packing and plan come together, and when there is too little data.
Keeps nothing between calls but the tokens: any step can be asked for at any time. Does not know
torch, devices or checkpoints; `position` is what a checkpoint needs to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config import Config
from engine.data.corpus import Record, documents
from engine.data.index import GlobalIndex, Position
from engine.data.reads import Named, Reads, training_reads
from engine.data.refused import nothing_to_read
from engine.data.stream import TokenStream
from engine.data.tokenising import token_stream
from engine.data.tokenizer import Tokenizer, tokenizer_of, vocabulary_findings
from engine.errors import Finding, TitanError
from engine.planner.plan import Plan

IGNORE = -100
"""Label of a token that no loss is counted for; torch's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one data rank computes in one accumulation step: int64 arrays of (B, S), C-contiguous, its own copies.

    `positions_BS` start again at 0 at every document, whose last token then has no label; None: each
    sequence is one document.
    """

    tokens_BS: NDArray[np.int64]
    labels_BS: NDArray[np.int64]
    positions_BS: NDArray[np.int64] | None = None

    @property
    def valid_tokens(self) -> int:
        """Labels that count."""
        return int(np.count_nonzero(self.labels_BS != IGNORE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was found, before the first step. `tokens` are those of one pass over the corpus.

    `epochs_needed`: passes over the corpus that training.steps take. `vocab_used`: the tokenizer's
    largest id + 1. `crc32` of the token stream: equal on all ranks, or they do not read the same.
    `steps_available`: the last step with data; None where the data repeats. `steps`: those of training.steps.
    """

    dataset: str
    documents: int
    bad_lines: int
    bad_files: int
    tokens: int
    samples_per_epoch: int
    epochs_needed: float
    tokenizer: str
    vocab_used: int
    crc32: int
    steps: int
    steps_available: int | None

    @property
    def identity(self) -> dict[str, Any]:
        """What the numbers of samples are numbers of: with another of these, a number means another sample."""
        return {
            "dataset": self.dataset,
            "samples_per_epoch": self.samples_per_epoch,
            "tokens": self.tokens,
            "crc32": self.crc32,
        }

    @property
    def text(self) -> str:
        """One line for people."""
        parts = [
            f"{self.dataset}: {_count(self.documents, 'document')}",
            f"{_count(self.tokens, 'token')} ({self.tokenizer})",
            f"{_count(self.samples_per_epoch, 'sequence')} an epoch",
            f"{self.epochs_needed:,.2f} epochs to read",
        ]
        if self.bad_lines:
            parts.append(f"{_count(self.bad_lines, 'bad line')} left out")
        if self.bad_files:
            parts.append(f"{_count(self.bad_files, 'unreadable file')} left out")
        if self.steps_available is not None:
            parts.append(f"data for {min(self.steps, self.steps_available):,} of {_count(self.steps, 'step')}")
        return ", ".join(parts)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class Loader:
    """Reads and tokenises the corpus once; then `batches(step)` for one data rank."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        *,
        data_rank: int,
        reads: Reads | None = None,
        start: Position | None = None,
        tokenizer: Tokenizer | None = None,
        on_record: Callable[[], None] | None = None,
    ) -> None:
        """`reads`: which corpora; left out: those of training. `start` is where an earlier run stopped, in whatever
        layout; left out: the beginning.

        `tokenizer`: the config's own, where it is read already. `on_record` is called at each record that is read.

        Raises TitanError with findings of family D: no such corpus, unreadable records, too little
        data for the plan, or a tokenizer that the model's vocabulary does not hold.
        """
        tokenizer = tokenizer or tokenizer_of(config)
        findings = vocabulary_findings(tokenizer, plan.model.vocab_size)
        if findings:
            raise TitanError(*findings)
        training, reads = config.training, reads or training_reads(config)
        (corpus,) = reads.corpora
        self._data_rank = data_rank
        self._seq_len = training.seq_len
        self._document_mask = config.data.document_mask
        records = documents(corpus.dataset, corpus.path)
        self._stream = token_stream(
            records if on_record is None else _noted(records, on_record),
            tokenizer,
            skip_unreadable=config.data.on_bad_line == "skip",
        )
        self.index = GlobalIndex(
            samples_per_epoch=self._stream.samples(training.seq_len),
            data_ranks=plan.mesh.data_ranks,
            local_batch=plan.local_batch_size,
            accumulation_steps=plan.gradient_accumulation_steps,
            repeat=reads.repeat,
            shuffle_seed=reads.shuffle_seed,
            start=start or Position(),
        )
        assert 0 <= data_rank < plan.mesh.data_ranks, f"there is no data rank {data_rank} of {plan.mesh.data_ranks}"
        assert self.index.global_batch == plan.global_batch_size, "the plan's batch is ranks x rows x accumulation"
        findings = _too_little(config, corpus, self._stream, self.index)
        if findings:
            raise TitanError(*findings)
        self.summary = _summary(config, reads, tokenizer, self._stream, self.index)

    @property
    def steps_available(self) -> int | None:
        """The last step with a whole global batch, the same on every rank; None where the data repeats."""
        return self.index.last_step

    @property
    def end_message(self) -> str:
        """Why `batches` answers None, for people; only where the data does not repeat."""
        last = self.index.last_step
        assert last is not None, "data that repeats does not end"
        left = self.index.samples_per_epoch - self.index.position(last).samples
        unread = f"; the {_count(left, 'sequence')} left make no whole global batch" if left else ""
        return (
            f"the data ended after step {last} on all data ranks: {_count(self.index.samples_per_epoch, 'sequence')} "
            f"in all, {self.index.global_batch:,} a step{unread}"
        )

    def position(self, step: int) -> Position:
        """How far the data is read after `step`: what a run in another layout goes on from."""
        return self.index.position(step)

    def batches(self, step: int) -> list[Batch] | None:
        """This rank's part of `step` (from 1), one batch an accumulation step; None on every rank once data ended."""
        last = self.index.last_step
        if last is not None and step > last:
            return None
        numbers = self.index.sample_numbers(step, self._data_rank)
        return [self._batch(indices) for indices in self.index.corpus_indices(numbers)]

    def _batch(self, indices: NDArray[np.int64]) -> Batch:
        windows = self._stream.windows(indices, self._seq_len)
        # Copies: a single row of either is contiguous as it is, and both would be the same memory.
        tokens_BS, labels_BS = windows[:, :-1].copy(), windows[:, 1:].copy()
        if not self._document_mask:
            return Batch(tokens_BS=tokens_BS, labels_BS=labels_BS)
        positions = self._stream.positions(indices, self._seq_len)
        labels_BS[positions[:, 1:] == 0] = IGNORE
        return Batch(tokens_BS=tokens_BS, labels_BS=labels_BS, positions_BS=positions[:, :-1].copy())


def _noted(records: Iterable[Record], on_record: Callable[[], None]) -> Iterator[Record]:
    for record in records:
        on_record()
        yield record


def _too_little(config: Config, corpus: Named, stream: TokenStream, index: GlobalIndex) -> tuple[Finding, ...]:
    """D205: nothing to read at all, or without repeating not one step."""
    seq_len, tokens = config.training.seq_len, stream.tokens
    held = f"{_count(stream.documents, 'document')} with {_count(tokens, 'token')}"
    more_or_repeat = "name a larger corpus in training.dataset_path, or set data.repeat = true"
    if tokens == 0:
        unreadable = stream.bad_lines + stream.bad_files
        return (nothing_to_read(corpus.dataset, corpus.path, unreadable=unreadable),)
    if index.repeat:
        return ()
    if stream.is_shorter_than_a_sample(seq_len):
        message = f"the corpus has {held}, and {tokens} tokens < {seq_len} (seq_len) + 1 (its last label)"
        return (_finding("training.seq_len", message, f"set it to {tokens - 1} or less, {more_or_repeat}"),)
    if index.last_step == 0:
        message = f"the corpus has {_count(index.samples_per_epoch, 'sequence')} < {index.global_batch} of one step"
        return (_finding("training.global_batch_size", message, more_or_repeat),)
    return ()


def _finding(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D205", severity="error", key=key, message=message, fix=fix)


def _summary(config: Config, reads: Reads, tokenizer: Tokenizer, stream: TokenStream, index: GlobalIndex) -> Summary:
    steps = config.training.steps if index.last_step is None else min(config.training.steps, index.last_step)
    read = index.position(max(steps, index.start.step)).samples
    short = stream.is_shorter_than_a_sample(config.training.seq_len)
    passes_a_sample = config.training.seq_len / stream.tokens if short else 1 / index.samples_per_epoch
    return Summary(
        dataset=reads.name,
        documents=stream.documents,
        bad_lines=stream.bad_lines,
        bad_files=stream.bad_files,
        tokens=stream.tokens,
        samples_per_epoch=index.samples_per_epoch,
        epochs_needed=read * passes_a_sample,
        tokenizer=tokenizer.name,
        vocab_used=tokenizer.vocab_used,
        crc32=stream.crc32,
        steps=config.training.steps,
        steps_available=index.last_step,
    )
