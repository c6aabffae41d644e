"""The beginning of a corpus that a run reads while it arrives: as much as tells what is in it.

Knows how much is looked at. Does not know how it is shown (check_text).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engine.config import Config
from engine.data.coverage import Lengths, lengths_of
from engine.data.excerpt import Piece, Row, excerpt
from engine.data.hub import hub_documents
from engine.data.index import GlobalIndex
from engine.data.reader import Reader
from engine.data.reads import Named, Reads
from engine.data.records import Record
from engine.data.refused import nothing_to_read
from engine.data.stream import TokenStream
from engine.data.tokenising import token_stream
from engine.data.tokenizer import Tokenizer, vocabulary_findings
from engine.errors import TitanError
from engine.planner.plan import Plan
from titancli.data.looked import Special, beginning_of, special_of
from titancli.data.progress import Tell

_CHARACTERS, _RECORDS = 1 << 20, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """What came first. `needed_tokens` are those of all steps of the run."""

    named: Named
    stream: TokenStream
    lengths: Lengths
    special: tuple[Special, ...]
    begins: str
    needed_tokens: int
    pieces: tuple[Piece, ...]

    def to_json(self) -> dict[str, Any]:
        """The object `training`: counts of the whole corpus are not known."""
        stream = self.stream
        counts = {name: getattr(stream, name) for name in ("documents", "tokens", "bad_lines", "bad_files")}
        return {
            "dataset": self.named.dataset,
            "path": self.named.path,
            "streaming": True,
            "needed_tokens": self.needed_tokens,
            "beginning": {
                **counts,
                "lengths": asdict(self.lengths),
                "bad": [asdict(each) for each in stream.bad],
                "special": [asdict(each) for each in self.special],
            },
        }


def arriving_of(reads: Reads, config: Config, plan: Plan, tokenizer: Tokenizer, *, tokens: int, tell: Tell) -> Arriving:
    """Looks at what comes first; TitanError where the corpus cannot be opened, or no text comes."""
    if findings := vocabulary_findings(tokenizer, plan.model.vocab_size):
        raise TitanError(*findings)
    named, seq_len = reads.corpora[0], config.training.seq_len
    records = hub_documents(named.path, text_field=config.data.text_field, streaming=True)
    skips = config.data.on_bad_line == "skip"
    stream = token_stream(_first(records, seq_len, tell), tokenizer, skip_unreadable=skips)
    if stream.tokens == 0:
        raise TitanError(nothing_to_read(named.dataset, named.path, unreadable=stream.bad_lines))
    lengths = lengths_of(stream)
    return Arriving(
        named=named,
        stream=stream,
        lengths=lengths,
        special=special_of(named, stream, tokenizer, tell),
        begins=beginning_of(stream, lengths, tokenizer),
        needed_tokens=config.training.steps * plan.global_batch_size * seq_len,
        pieces=_pieces(stream, config, tokenizer, tokens),
    )


def _first(records: Iterator[Record], seq_len: int, tell: Tell) -> Iterator[Record]:
    """Records until a sequence and a little more is surely among them."""
    characters = 0
    for number, record in enumerate(records, start=1):
        tell.document()
        yield record
        characters += len(record) if isinstance(record, str) else 0
        # A token is rarely of more than sixteen characters.
        enough = characters > 16 * seq_len
        if enough and (number >= _RECORDS or characters > _CHARACTERS):
            return


def _pieces(stream: TokenStream, config: Config, tokenizer: Tokenizer, tokens: int) -> tuple[Piece, ...]:
    """The first sequence in the order of the stream: which one a run reads first, its window decides."""
    reader = Reader(
        index=GlobalIndex(
            sizes=(1,), data_ranks=1, local_batch=1, accumulation_steps=1, repeat=True, shuffle_seed=None
        ),
        streams=(stream,),
        data_rank=0,
        seq_len=config.training.seq_len,
        document_mask=config.data.document_mask,
    )
    batch = reader.batch(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    positions = None if batch.positions_BS is None else batch.positions_BS[0]
    row = Row(sample=0, tokens_S=batch.tokens_BS[0], labels_S=batch.labels_BS[0], positions_S=positions)
    return excerpt(row, stream, tokenizer, tokens=tokens)
