"""What `titan data check` found, in words and lines for people.

Knows the layout and what the figures are called. Does not look at data (looked).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.config import Config
from engine.data.coverage import Lengths
from engine.data.excerpt import Piece
from engine.data.records import Unreadable
from engine.data.texts import Place
from engine.data.tokenizer import Tokenizer
from titancli import figures, report
from titancli.data.arriving import Arriving
from titancli.data.looked import Looked, Part, Special

_Row = tuple[str, str]


def say_tokenizer(tokenizer: Tokenizer, vocab_size: int, width: int) -> None:
    """Which tokenizer, and how much of the model's table it reaches."""
    spare = vocab_size - tokenizer.vocab_used
    used = f"up to {tokenizer.vocab_used - 1:,}; the model's table has {vocab_size:,} rows"
    ends = [(tokenizer.bos_id, "BOS"), (tokenizer.eos_id, "EOS")]
    named = [f"{what} is {tokenizer.special[id_]} ({id_:,})" for id_, what in ends if id_ is not None]
    lacking = [what for id_, what in ends if id_ is None]
    named += [f"it has no {' and no '.join(lacking)}"] if lacking else []
    report.say(f"tokenizer: {tokenizer.name}")
    used += f", {spare:,} of them unused" if spare > 0 else f", {-spare:,} too few" if spare else ""
    rows = [("ids", used), ("special", ", ".join(named))]
    _say_rows(rows, width)


def say_part(name: str, part: Part, config: Config, tokenizer: Tokenizer, width: int) -> None:
    """A corpus, or each of a mixture, of training or of validation."""
    several = len(part.corpora) > 1
    for corpus in part.corpora:
        path = "" if corpus.named.path is None else f" {corpus.named.path}"
        report.say(f"\n{name}: {corpus.named.dataset}{path}")
        _say_rows([*_rows(corpus, part, config, tokenizer)], width)
    if part.batches is not None:
        _say_rows([("run", _validations(part, config))], width)
    elif several:
        report.say(f"\n{name}: all {len(part.corpora)} corpora")
        _say_rows([("run", f"{figures.many(part.tokens_read, 'token')} in {_steps(part, config)}")], width)


def say_arriving(arriving: Arriving, config: Config, tokenizer: Tokenizer, width: int) -> None:
    """The beginning of a corpus that is read while it arrives."""
    stream, named = arriving.stream, arriving.named
    held = f"{figures.many(stream.documents, 'document')}, {figures.many(stream.tokens, 'token')}"
    needed = f"{figures.many(config.training.steps, 'step')} read {figures.many(arriving.needed_tokens, 'token')}"
    report.say(f"\ntraining: {named.dataset} {named.path}, read while it arrives")
    rows = [
        ("begins", f"{held} were looked at; how much there is, is known when it has come"),
        *_lengths(arriving.lengths, arriving.begins, None),
        *_bad(stream.bad, stream.bad_lines, stream.bad_files, config),
        ("special", _special(arriving.special, tokenizer)),
        ("run", needed),
    ]
    _say_rows(rows, width)


def say_excerpt(title: str, pieces: Sequence[Piece], seq_len: int, width: int) -> None:
    """The first tokens of a sample: a heading for each document, and below it the text."""
    if not pieces:
        return
    shown = pieces[-1].end
    what = f"all {shown:,} tokens" if shown == seq_len else f"the first {shown:,} of {seq_len:,} tokens"
    report.say(f"\n{title}, {what}")
    for piece in pieces:
        for line in report.wrapped(f"  {_heading(piece)}", width, indent=4):
            report.say(line, tint="faint")
        for line in _text_lines(piece.text, width - 6):
            report.say(f"    | {line}")


def _rows(corpus: Looked, part: Part, config: Config, tokenizer: Tokenizer) -> Iterator[_Row]:
    summary, texts = corpus.summary, corpus.texts
    held = f"{figures.many(summary.documents, 'document')}, {figures.many(summary.tokens, 'token')}"
    yield "holds", held + (f", prepared in {corpus.named.prepared}" if corpus.named.prepared else "")
    yield from _lengths(corpus.lengths, corpus.begins, texts.place if texts else None)
    yield from _bad(corpus.bad, summary.bad_lines, summary.bad_files, config)
    yield "special", _special(corpus.special, tokenizer)
    if texts is not None and texts.spelt:
        yield "spelt out", _spelt(corpus)
    yield "sequences", _sequences(corpus, config)
    if summary.tokens > config.training.seq_len:
        yield "cut", _cut(corpus, config)
    if part.batches is None:
        yield "run", _run(corpus, part, config)


def _lengths(lengths: Lengths, begins: str, place: Place | None) -> Iterator[_Row]:
    spread = f", median {lengths.median:,.0f}, {lengths.shortest:,} to {lengths.longest:,}"
    same = lengths.shortest == lengths.longest
    yield "documents", f"of {lengths.mean:,.1f} tokens on average" + ("" if same else spread)
    where = ""
    if place is not None:
        where = f", {place.file}" + (f":{place.line}" if place.line else f" row {place.row}" if place.row else "")
    beginning = report.shortened(" ".join(begins.split()), 48)
    yield "longest", f"{lengths.longest:,} tokens, document {lengths.longest_document:,}{where}: {beginning}"


def _bad(bad: Sequence[Unreadable], lines: int, files: int, config: Config) -> Iterator[_Row]:
    counts = [figures.many(n, thing) for n, thing in ((lines, "bad line"), (files, "unreadable file")) if n]
    if not counts:
        yield "bad", "no line and no file that cannot be read"
        return
    policy = config.data.on_bad_line
    done = "left out (data.on_bad_line = skip)" if policy == "skip" else "refused by launch (data.on_bad_line = error)"
    if all(each.tolerated for each in bad):
        done = "left out, as always in this dataset"
    yield "bad", f"{' and '.join(counts)}, {done}"
    for each in bad:
        yield "", f"{each.file}, {each.place}: {each.reason}"
    if lines + files > len(bad):
        yield "", f"and {lines + files - len(bad):,} more"


def _special(special: Sequence[Special], tokenizer: Tokenizer) -> str:
    if not special:
        return "none is put in: the tokens do not tell where a document begins or ends"
    ids = {"BOS": tokenizer.bos_id, "EOS": tokenizer.eos_id}
    told = []
    for each in special:
        names = " and ".join(name for name, id_ in ids.items() if id_ == each.id)
        told.append(f"{figures.many(each.count, 'time')} {each.name} ({names})")
    return ", ".join(told)


def _spelt(corpus: Looked) -> str:
    texts = corpus.texts
    assert texts is not None, "the caller has texts"
    of = f"of the first {texts.documents:,} documents" if texts.documents < corpus.summary.documents else "of them"
    counts = [(name, count) for name, count in texts.spelt.items() if count]
    if not counts:
        return f"none {of} spells a special token"
    found = [f"{count:,} {of} {'spells' if count == 1 else 'spell'} {name}" for name, count in counts[:5]]
    more = f", and {len(counts) - 5:,} more names" if len(counts) > 5 else ""
    return f"{', '.join(found)}{more}: it stays text there, and is no command"


def _sequences(corpus: Looked, config: Config) -> str:
    summary, cut, seq_len = corpus.summary, corpus.cut, config.training.seq_len
    if summary.tokens < seq_len + 1:
        return f"shorter than one of {seq_len:,} tokens: it is read round and round within each"
    said = f"{summary.samples_per_epoch:,} of {seq_len:,} tokens an epoch"
    if not cut.left_out_tokens:
        return f"{said}, none left over"
    documents = cut.left_out_documents
    whole = f", {figures.many(documents, 'whole document')} among them" if documents else ""
    return f"{said}; the last {figures.many(cut.left_out_tokens, 'token')} make none and are not read{whole}"


def _cut(corpus: Looked, config: Config) -> str:
    cut, documents = corpus.cut, corpus.summary.documents
    labels = corpus.summary.samples_per_epoch * config.training.seq_len
    said = (
        f"{_share(cut.cut_documents, documents)} of the documents are in no sequence whole; "
        f"{_share(cut.longer_documents, documents)} are longer than one"
    )
    if config.data.document_mask:
        return f"{said}; {_share(cut.document_starts, labels)} of the labels are masked, the first token of a document"
    return f"{said}; documents of a sequence see each other (data.document_mask = false)"


def _run(corpus: Looked, part: Part, config: Config) -> str:
    taken, size = corpus.taken, corpus.summary.samples_per_epoch
    said = (
        f"{figures.many(taken.samples, 'sequence')}, {figures.many(taken.tokens, 'token')}: "
        f"{_share(taken.different_samples, size)} of what there is, {_epochs(taken.epochs)}"
    )
    if len(part.corpora) == 1:
        return f"{said}, in {_steps(part, config)}"
    return f"{said}; {100 * corpus.summary.share_asked:.4g} % asked for, {100 * corpus.summary.share:.4g} % dealt"


def _epochs(epochs: float) -> str:
    return f"{epochs:,.2f} epochs" if epochs >= 0.1 else f"{epochs:.2g} epochs"


def _steps(part: Part, config: Config) -> str:
    available, steps = part.loader.summary.steps_available, config.training.steps
    if available is None or available >= steps:
        return figures.many(steps, "step")
    return f"{available:,} of {figures.many(steps, 'step')}, where the data ends (data.repeat = false)"


def _validations(part: Part, config: Config) -> str:
    corpus = part.corpora[0]
    share = _share(corpus.taken.different_samples, corpus.summary.samples_per_epoch)
    batches = f"{part.batches:,} batch{'' if part.batches == 1 else 'es'}"
    times = f"{figures.many(part.validations or 0, 'time')}, every {figures.many(config.validation.freq, 'step')}"
    return f"{batches}, {share} of what there is, each time the same; {times}"


def _heading(piece: Piece) -> str:
    begins = "from its beginning" if piece.document_token == 0 else f"from its token {piece.document_token:,}"
    ends = piece.document_token + piece.end - piece.begin == piece.document_tokens
    whole = "whole" if piece.document_token == 0 and ends else begins + (" to its end" if ends else "")
    first, last = piece.positions
    masked = ", ".join(f"{place:,}" for place in piece.masked_labels)
    return (
        f"tokens {piece.begin:,} to {piece.end - 1:,}, positions {first:,} to {last:,}: document {piece.document:,}, "
        f"{whole}" + (f"; the label of token {masked} is masked" if masked else "")
    )


def _text_lines(text: str, width: int) -> Iterator[str]:
    """Lines of a text, those that are longer than `width` in several."""
    for line in text.split("\n"):
        shown = report.printable(line).replace("\t", "    ")
        yield from (shown[at : at + width] for at in range(0, max(1, len(shown)), width))


def _share(part: int, whole: int) -> str:
    if 0 < part < whole / 2000:
        return "less than 0.1 %"
    return figures.percent(100 * part / whole)


def _say_rows(rows: Sequence[_Row], width: int) -> None:
    for label, text in rows:
        report.say("\n".join(report.hanging(f"  {label:<11}", text, width)))
