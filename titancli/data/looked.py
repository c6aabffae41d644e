"""What `titan data check` finds in each corpus of a config: the loader's own counts, and what is in documents.

Knows the streams of a loader and the texts beside them. Does not know how it is shown (check_text).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engine.config import Config
from engine.data.coverage import Cut, Lengths, Taken, counted, cut_of, lengths_of, taken_of
from engine.data.excerpt import Piece, Row, excerpt
from engine.data.large import LARGE_BYTES
from engine.data.loader import Loader
from engine.data.reads import Named
from engine.data.records import Unreadable
from engine.data.stream import TokenStream
from engine.data.summary import CorpusSummary, validation_batches
from engine.data.texts import Texts, look_through
from engine.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from titancli.data.progress import Tell

# What is decoded of the longest document, so that it can be searched for.
_BEGINNING_TOKENS = 24
# Ids of others are counted as far as this: a gigabyte or so.
_MOST_COUNTED = 1 << 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """A token that documents are framed with: how often it is among the `among` first tokens of a corpus."""

    id: int
    name: str
    count: int
    among: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One corpus. `texts` is None where there are none to look at, as of token ids.

    `begins`: the first words of the longest document.
    """

    named: Named
    summary: CorpusSummary
    lengths: Lengths
    cut: Cut
    taken: Taken
    bad: tuple[Unreadable, ...]
    special: tuple[Special, ...]
    texts: Texts | None
    begins: str

    def to_json(self) -> dict[str, Any]:
        """An item of `corpora`."""
        texts = self.texts
        return {
            **{name: getattr(self.summary, name) for name in self.summary.__slots__},
            "key": self.named.key,
            "prepared": self.named.prepared,
            "lengths": asdict(self.lengths),
            "longest": {"begins": self.begins, "place": asdict(texts.place) if texts and texts.place else None},
            "cut": asdict(self.cut),
            "read": asdict(self.taken),
            "bad": [asdict(each) for each in self.bad],
            "special": [asdict(each) for each in self.special],
            "spelt": None if texts is None else {"documents": texts.documents, "names": texts.spelt},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What training reads, or validation. `batches` of one validation, and how many `validations` there are."""

    loader: Loader
    corpora: tuple[Looked, ...]
    batches: int | None = None
    validations: int | None = None

    @property
    def tokens_read(self) -> int:
        """Of the whole run, or of one validation."""
        return sum(corpus.taken.tokens for corpus in self.corpora)

    def to_json(self) -> dict[str, Any]:
        """The object `training` or `validation`."""
        summary = self.loader.summary
        values = summary.to_json() | {"corpora": [each.to_json() for each in self.corpora]}
        if self.batches is None:
            return values
        # Of the steps of the run, which are not a validation's.
        for table in (values, *values["corpora"]):
            for name in ("steps", "steps_available", "epochs_needed"):
                table.pop(name, None)
        return values | {"batches": self.batches, "validations": self.validations}


def training_part(loader: Loader, config: Config, tokenizer: Tokenizer, tell: Tell) -> Part:
    """What training.steps read of the corpora, as far as these go."""
    index, steps = loader.index, config.training.steps
    done = steps if index.last_step is None else min(steps, index.last_step)
    taken = index.mixture.counts(index.position(done).samples)
    return Part(loader=loader, corpora=_looked(loader, config, tokenizer, taken, tell))


def validation_part(loader: Loader, config: Config, tokenizer: Tokenizer, tell: Tell) -> Part:
    """What one validation reads of its corpus."""
    index, freq, steps = loader.index, config.validation.freq, config.training.steps
    batches = validation_batches(config, index)
    taken = min(batches * index.global_batch, index.numbers)
    corpora = _looked(loader, config, tokenizer, (taken,), tell)
    # One follows the last step too.
    return Part(loader=loader, corpora=corpora, batches=batches, validations=-(-steps // freq))


def first_sample(loader: Loader, tokenizer: Tokenizer, *, tokens: int) -> tuple[int, int, tuple[Piece, ...]]:
    """Sample 0 of a run as its first data rank reads it: the corpus, its number there, and its first tokens."""
    index = loader.index
    corpora, samples = index.places(index.sample_numbers(1, 0)[:1, :1])
    corpus, sample = int(corpora[0, 0]), int(samples[0, 0])
    batch = loader.reader.batch(corpora[0], samples[0])
    row = Row(
        sample=sample,
        tokens_S=batch.tokens_BS[0],
        labels_S=batch.labels_BS[0],
        positions_S=None if batch.positions_BS is None else batch.positions_BS[0],
    )
    return corpus, sample, excerpt(row, loader.reader.streams[corpus], tokenizer, tokens=tokens)


def _looked(
    loader: Loader, config: Config, tokenizer: Tokenizer, taken: tuple[int, ...], tell: Tell
) -> tuple[Looked, ...]:
    seq_len, streams, summary = config.training.seq_len, loader.reader.streams, loader.summary
    return tuple(
        _of_corpus(named, each, stream, config, tokenizer, taken_of(stream, seq_len, samples=samples), tell)
        for named, each, stream, samples in zip(loader.reads.corpora, summary.corpora, streams, taken, strict=True)
    )


def _of_corpus(
    named: Named,
    summary: CorpusSummary,
    stream: TokenStream,
    config: Config,
    tokenizer: Tokenizer,
    taken: Taken,
    tell: Tell,
) -> Looked:
    lengths = lengths_of(stream)
    return Looked(
        named=named,
        summary=summary,
        lengths=lengths,
        cut=cut_of(stream, config.training.seq_len),
        taken=taken,
        bad=stream.bad,
        special=special_of(named, stream, tokenizer, tell),
        texts=_texts(named, config, tokenizer, lengths.longest_document, tell),
        begins=beginning_of(stream, lengths, tokenizer),
    )


def beginning_of(stream: TokenStream, lengths: Lengths, tokenizer: Tokenizer) -> str:
    """The first words of the longest document."""
    end = lengths.longest_begin + min(lengths.longest, _BEGINNING_TOKENS)
    return tokenizer.decode(stream.read(lengths.longest_begin, end).tolist())


def special_of(named: Named, stream: TokenStream, tokenizer: Tokenizer, tell: Tell) -> tuple[Special, ...]:
    """BOS and EOS where the tokenizer has them: each once a document, or as often as others have put them."""
    ids = [id_ for id_ in dict.fromkeys((tokenizer.bos_id, tokenizer.eos_id)) if id_ is not None]
    if named.dataset == "bins":
        among = min(stream.tokens, _MOST_COUNTED)
        found = counted(stream, ids, tokens=among, on_tokens=tell.tokens)
    else:
        among = stream.tokens
        ends = (tokenizer.bos_id, tokenizer.eos_id)
        found = {id_: stream.documents * ends.count(id_) for id_ in ids}
    return tuple(Special(id=id_, name=tokenizer.special[id_], count=found[id_], among=among) for id_ in ids)


def _texts(named: Named, config: Config, tokenizer: Tokenizer, document: int, tell: Tell) -> Texts | None:
    """What the texts hold, of a prepared corpus those of its beginning; None of token ids."""
    if named.dataset == "bins":
        return None
    # The names of the bytes' own are titan's, and no text means them.
    names = [] if tokenizer.name == "bytes" else list(tokenizer.special.values())
    most_bytes = None if named.prepared is None else LARGE_BYTES
    return look_through(
        named,
        text_field=config.data.text_field,
        names=names,
        document=document,
        most_bytes=most_bytes,
        on_document=tell.document,
    )
