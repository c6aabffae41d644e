"""The batches of one data rank, by step.

Knows how corpora, tokenizer, streams and plan come together. Keeps nothing between calls but the tokens: any step can
be asked for at any time. Does not know torch, devices or checkpoints; `position` is what a checkpoint needs to go on
from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from engine.config import Config
from engine.data.batch import Batch
from engine.data.bins import bin_stream
from engine.data.corpus import documents
from engine.data.index import GlobalIndex, Position
from engine.data.mixture import Mixture, quotas_of
from engine.data.prepared import is_prepared, open_prepared
from engine.data.reader import Reader
from engine.data.reads import Named, Reads, training_reads
from engine.data.records import Record
from engine.data.stream import TokenStream
from engine.data.summary import count, summary_of, too_little
from engine.data.tokenising import token_stream
from engine.data.tokenizer import Tokenizer, tokenizer_of, vocabulary_findings
from engine.errors import TitanError
from engine.planner.plan import Plan


class Loader:
    """Reads and tokenises the corpora once; then `batches(step)` for one data rank."""

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
        reads = reads or training_reads(config)
        self.reads = reads
        streams = tuple(_stream(named, config, tokenizer, on_record, plan.model.vocab_size) for named in reads.corpora)
        self.index = GlobalIndex(
            sizes=tuple(stream.samples(config.training.seq_len) for stream in streams),
            mixture=Mixture(
                quotas=quotas_of(reads.weights) if len(reads.corpora) > 1 else (1,), seed=config.debug.seed
            ),
            data_ranks=plan.mesh.data_ranks,
            local_batch=plan.local_batch_size,
            accumulation_steps=plan.gradient_accumulation_steps,
            repeat=reads.repeat,
            shuffle_seed=reads.shuffle_seed,
            start=start or Position(),
        )
        assert 0 <= data_rank < plan.mesh.data_ranks, f"there is no data rank {data_rank} of {plan.mesh.data_ranks}"
        assert self.index.global_batch == plan.global_batch_size, "the plan's batch is ranks x rows x accumulation"
        if wrong := too_little(config, reads, streams, self.index):
            raise TitanError(*wrong)
        self.reader = Reader(
            index=self.index,
            streams=streams,
            data_rank=data_rank,
            seq_len=config.training.seq_len,
            document_mask=config.data.document_mask,
        )
        self.summary = summary_of(config, reads, tokenizer, streams, self.index)

    @property
    def steps_available(self) -> int | None:
        """The last step with a whole global batch, the same on every rank; None where the data repeats."""
        return self.index.last_step

    @property
    def end_message(self) -> str:
        """Why `batches` answers None, for people; only where the data does not repeat."""
        last = self.index.last_step
        assert last is not None, "data that repeats does not end"
        numbers = self.index.numbers
        left = numbers - self.index.position(last).samples
        unread = f"; the {count(left, 'sequence')} left make no whole global batch" if left else ""
        if len(self.reads.corpora) > 1:
            dealt = self.index.mixture.counts(numbers)
            first = next(k for k, size in enumerate(self.index.sizes) if dealt[k] == size)
            unread += f"; {self.reads.corpora[first].path} is the corpus that ends first"
        return (
            f"the data ended after step {last} on all data ranks: {count(numbers, 'sequence')} "
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
        return self.reader.batches(step)


def _stream(
    named: Named, config: Config, tokenizer: Tokenizer, on_record: Callable[[], None] | None, vocab_size: int
) -> TokenStream:
    """The tokens of one corpus: mapped where they are made already, else made in memory."""
    if named.prepared is not None:
        return open_prepared(named.prepared, key=named.key, tokenizer=tokenizer, vocab_size=vocab_size)
    if named.dataset == "bins":
        if named.path is not None and is_prepared(os.path.expanduser(named.path)):
            return open_prepared(named.path, key=named.key, tokenizer=tokenizer, vocab_size=vocab_size)
        return bin_stream(named.path, key=named.key, tokenizer=tokenizer, vocab_size=vocab_size)
    records = documents(named.dataset, named.path, text_field=config.data.text_field)
    return token_stream(
        records if on_record is None else _noted(records, on_record),
        tokenizer,
        skip_unreadable=config.data.on_bad_line == "skip",
    )


def _noted(records: Iterable[Record], on_record: Callable[[], None]) -> Iterator[Record]:
    for record in records:
        on_record()
        yield record
