"""What was found of the corpora of a run before its first step, in numbers and in words.

Knows what is counted, what is too little, and what the numbers of samples are numbers of. Does not read anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.config import Config
from engine.data.index import GlobalIndex
from engine.data.reads import Named, Reads
from engine.data.refused import nothing_to_read
from engine.data.stream import TokenStream
from engine.data.tokenizer import Tokenizer
from engine.errors import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary:
    """One corpus of a run: its counts, the share of samples asked for and dealt, and the passes that the run takes.

    `share_asked` and `share` are of all samples, 0 to 1; the second is the quota of a block (mixture.py).
    """

    dataset: str
    path: str | None
    documents: int
    bad_lines: int
    bad_files: int
    tokens: int
    samples_per_epoch: int
    epochs_needed: float
    crc32: int
    share_asked: float
    share: float

    @property
    def text(self) -> str:
        """One line for people, of one corpus of several."""
        parts = [
            f"{self.dataset} {self.path}: {count(self.documents, 'document')}",
            count(self.tokens, "token"),
            f"{count(self.samples_per_epoch, 'sequence')} an epoch",
            f"{100 * self.share:.4g} % of what is read",
            f"{self.epochs_needed:,.2f} epochs",
            *_left_out(self),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was found, before the first step. `tokens` are those of one pass over all corpora.

    `epochs_needed`: passes that training.steps take over the corpus that is read most often. `vocab_used`: the
    tokenizer's largest id + 1. `steps_available`: the last step with data; None where the data repeats. `steps`: those
    of training.steps. `crc32` of the token streams: equal on all ranks, or they do not read the same. `mixture_seed`:
    of the order in which several corpora take turns.
    """

    dataset: str
    corpora: tuple[CorpusSummary, ...]
    tokenizer: str
    vocab_used: int
    steps: int
    steps_available: int | None
    mixture_seed: int = 0

    @property
    def documents(self) -> int:
        """Documents of all corpora."""
        return sum(corpus.documents for corpus in self.corpora)

    @property
    def bad_lines(self) -> int:
        """Lines and rows that were left out."""
        return sum(corpus.bad_lines for corpus in self.corpora)

    @property
    def bad_files(self) -> int:
        """Whole files that were left out."""
        return sum(corpus.bad_files for corpus in self.corpora)

    @property
    def tokens(self) -> int:
        """Tokens of one pass over all corpora."""
        return sum(corpus.tokens for corpus in self.corpora)

    @property
    def samples_per_epoch(self) -> int:
        """Samples of one pass over all corpora."""
        return sum(corpus.samples_per_epoch for corpus in self.corpora)

    @property
    def epochs_needed(self) -> float:
        """Passes over the corpus that is read most often."""
        return max(corpus.epochs_needed for corpus in self.corpora)

    @property
    def crc32(self) -> int:
        """Of the first corpus; `identity` has them all."""
        return self.corpora[0].crc32

    @property
    def identity(self) -> dict[str, Any]:
        """What the numbers of samples are numbers of: with another of these, a number means another sample."""
        values: dict[str, Any] = {
            "dataset": self.dataset,
            "samples_per_epoch": self.samples_per_epoch,
            "tokens": self.tokens,
            "crc32": self.crc32,
        }
        if len(self.corpora) > 1:
            # Not by their paths: the same text elsewhere has the same samples.
            parts = (f"{100 * corpus.share:.6g} % crc {corpus.crc32:08x}" for corpus in self.corpora)
            values["mixture"] = f"{' + '.join(parts)} by seed {self.mixture_seed}"
        return values

    def to_json(self) -> dict[str, Any]:
        """The object of the event `run_started`."""
        names = ("documents", "bad_lines", "bad_files", "tokens", "samples_per_epoch", "epochs_needed", "crc32")
        corpora = [{name: getattr(each, name) for name in each.__slots__} for each in self.corpora]
        more = {name: getattr(self, name) for name in ("tokenizer", "vocab_used", "steps", "steps_available")}
        return {"dataset": self.dataset, **{name: getattr(self, name) for name in names}, **more, "corpora": corpora}

    @property
    def text(self) -> str:
        """One line for people."""
        parts = [
            f"{self.dataset}: {count(self.documents, 'document')}",
            f"{count(self.tokens, 'token')} ({self.tokenizer})",
            f"{count(self.samples_per_epoch, 'sequence')} an epoch",
        ]
        if len(self.corpora) == 1:
            parts.append(f"{self.epochs_needed:,.2f} epochs to read")
        else:
            each = (f"{100 * c.share:.4g} % {c.path} ({c.epochs_needed:,.2f} epochs)" for c in self.corpora)
            parts.append(f"to read {', '.join(each)}")
        parts += _left_out(self)
        if self.steps_available is not None:
            parts.append(f"data for {min(self.steps, self.steps_available):,} of {count(self.steps, 'step')}")
        return ", ".join(parts)


def validation_batches(config: Config, index: GlobalIndex) -> int:
    """Global batches of one validation, the last one filled up where the corpus ends in it."""
    whole = -(-index.numbers // index.global_batch)
    return whole if config.validation.steps == -1 else min(whole, config.validation.steps)


def validation_text(summary: Summary, index: GlobalIndex, config: Config) -> str:
    """One line for people about a corpus that is validated on."""
    batches = validation_batches(config, index)
    parts = [
        f"{summary.dataset}: {count(summary.documents, 'document')}",
        f"{count(summary.tokens, 'token')} ({summary.tokenizer})",
        count(index.numbers, "sequence"),
        *_left_out(summary),
        f"{batches:,} batch{'' if batches == 1 else 'es'} every {count(config.validation.freq, 'step')}",
    ]
    return ", ".join(parts)


def _left_out(found: CorpusSummary | Summary) -> list[str]:
    bad = [(found.bad_lines, "bad line"), (found.bad_files, "unreadable file")]
    return [f"{count(number, thing)} left out" for number, thing in bad if number]


def count(number: int, thing: str) -> str:
    """A number and its thing in words: `1 token`, `2,000 tokens`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def summary_of(
    config: Config, reads: Reads, tokenizer: Tokenizer, streams: tuple[TokenStream, ...], index: GlobalIndex
) -> Summary:
    """What is to be said about streams that were read, and about what the run takes of them."""
    seq_len, steps = config.training.seq_len, config.training.steps
    done = steps if index.last_step is None else min(steps, index.last_step)
    taken = index.mixture.counts(index.position(max(done, index.start.step)).samples)
    corpora = []
    for number, (named, stream) in enumerate(zip(reads.corpora, streams, strict=True)):
        short = stream.is_shorter_than_a_sample(seq_len)
        passes_a_sample = seq_len / stream.tokens if short else 1 / index.sizes[number]
        corpora.append(
            CorpusSummary(
                dataset=named.dataset,
                path=named.path,
                documents=stream.documents,
                bad_lines=stream.bad_lines,
                bad_files=stream.bad_files,
                tokens=stream.tokens,
                samples_per_epoch=index.sizes[number],
                epochs_needed=taken[number] * passes_a_sample,
                crc32=stream.crc32,
                share_asked=reads.weights[number] / sum(reads.weights),
                share=index.mixture.quotas[number] / index.mixture.block,
            )
        )
    return Summary(
        dataset=reads.name,
        corpora=tuple(corpora),
        tokenizer=tokenizer.name,
        vocab_used=tokenizer.vocab_used,
        steps=steps,
        steps_available=index.last_step,
        mixture_seed=index.mixture.seed,
    )


def too_little(config: Config, reads: Reads, streams: tuple[TokenStream, ...], index: GlobalIndex) -> list[Finding]:
    """D205: a corpus without anything to read, or without repeating not one step."""
    findings = [
        nothing_to_read(named.dataset, named.path, unreadable=stream.bad_lines + stream.bad_files)
        for named, stream in zip(reads.corpora, streams, strict=True)
        if stream.tokens == 0
    ]
    if findings or index.repeat:
        return findings
    for named, stream in zip(reads.corpora, streams, strict=True):
        findings += _shorter_than_a_sample(named, stream, config.training.seq_len, of_several=len(streams) > 1)
    if not findings and index.last_step == 0 and not reads.to_the_end:
        message = f"the corpus has {count(index.numbers, 'sequence')} < {index.global_batch} of one step"
        findings = [_finding("training.global_batch_size", message, _more(reads.corpora[0]))]
    return findings


def _more(named: Named) -> str:
    larger = f"name a larger corpus in {named.key}"
    return larger if named.key.startswith("validation.") else f"{larger}, or set data.repeat = true"


def _shorter_than_a_sample(named: Named, stream: TokenStream, seq_len: int, *, of_several: bool) -> list[Finding]:
    if not stream.is_shorter_than_a_sample(seq_len):
        return []
    held = f"{count(stream.documents, 'document')} with {count(stream.tokens, 'token')}"
    which = f"the corpus {named.path}" if of_several else "the corpus"
    message = f"{which} has {held}, and {stream.tokens} tokens < {seq_len} (seq_len) + 1 (its last label)"
    return [_finding("training.seq_len", message, f"set it to {stream.tokens - 1} or less, {_more(named)}")]


def _finding(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D205", severity="error", key=key, message=message, fix=fix)
