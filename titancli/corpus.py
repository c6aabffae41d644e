"""The data of a config, looked at before anything is started.

Knows which findings of the engine's data room concern a config, where their keys were written, and how much of a corpus
is looked at without launching. Does not know how data is read (engine/data), nor who reads all of it (whole_corpus).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.facts import Facts
from engine.keys import tokenizer_name
from engine.planner.plan import Plan
from engine.rules.corpus import BYTE_IDS
from engine.sources import Loaded, locate
from titancli import figures

if TYPE_CHECKING:
    from engine.data.glance import Glance
    from engine.data.reads import Named, Reads
    from engine.data.tokenizer import Tokenizer

# A second of reading at most, of all corpora together; launch's own reading tells the rest.
_MOST_BYTES, _MOST_S = 32 << 20, 1.0
# What is tokenised too: bytes are their own ids; a tokenizer.json takes about a second for so much.
_MOST_TOKENISED_BYTES, _MOST_TOKENISED_BY_FILE_BYTES = 16 << 20, 2 << 20
# Ids of others are looked through at a gigabyte a second, those of a prepared folder not at all.
_MOST_IDS_BYTES = 256 << 20
_MISSING_FIX = "name one that is there where the run starts; launch refuses one that is not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One corpus of a config: the key and the path that name it, and which dataset reads it."""

    key: str
    path: str
    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one corpus; `text` says it to people. `is_small`: all of it can be read at once."""

    corpus: Corpus
    glance: Glance
    text: str
    is_small: bool

    def to_json(self) -> dict[str, Any]:
        """An item of `here.data` of `titan validate --json`."""
        counts = asdict(replace(self.glance, refusals=()))
        del counts["refusals"]
        return {**asdict(self.corpus), **counts, "text": self.text}


def look_at_data(loaded: Loaded, plan: Plan | None) -> tuple[list[Finding], list[Seen]]:
    """What the tokenizer and the corpora of a config say that are on this machine; what is not here is a warning.

    Whether a file that is not here is needed here, only a launch knows. Small corpora are read as launch reads them
    where there is a `plan`; of a large one only the beginning is.
    """
    findings, tokenizer = look_at_tokenizer(loaded)
    tokenised = None if findings else plan
    seen: list[Seen] = []
    until_s = time.monotonic() + _MOST_S
    for reads in _sound_reads(loaded):
        wrong, looked = _look_at(reads, loaded.config, until_s)
        findings += wrong
        refused = any(each.severity == "error" for each in wrong)
        if tokenised is not None and not refused and _are_small(reads, looked, loaded.config):
            more, looked = _read(loaded, tokenised, tokenizer, reads, looked)
            findings += more
        seen += looked
    return [placed(loaded, finding) for finding in findings], seen


def look_at_beginning(named: Named, config: Config) -> Seen:
    """What the beginning of a corpus of files holds; TitanError where a run would be refused for it."""
    seen = _glanced(named, config, most_s=_MOST_S)
    wrong = [finding for finding in _said_of(seen) if finding.severity == "error"]
    if wrong:
        raise TitanError(*wrong)
    return seen


def look_at_tokenizer(loaded: Loaded) -> tuple[list[Finding], Tokenizer | None]:
    """What is wrong with a tokenizer that is a file, alone and beside the model's vocabulary; else the tokenizer."""
    name = tokenizer_name(loaded.config)
    if name == "bytes" or not _is_sound(loaded, "data.tokenizer", "model.hf_assets_path"):
        return [], None
    if not os.path.exists(os.path.expanduser(name)):
        message = f"the tokenizer {name} is not on this machine"
        return [_warning("D611", "data.tokenizer", message, _MISSING_FIX)], None
    from engine.data.tokenizer import tokenizer_of, vocabulary_findings

    try:
        tokenizer = tokenizer_of(loaded.config)
    except TitanError as mistake:
        return list(mistake.findings), None
    shape = Facts(loaded.config).shape
    if shape is None or not _is_sound(loaded, "model.shape.vocab_size", "model.name", "model.flavor"):
        return [], tokenizer
    return list(vocabulary_findings(tokenizer, shape.vocab_size)), tokenizer


def about(reads: Reads, finding: Finding) -> Finding:
    """A finding about training's corpus as one about the corpora of `reads`: the data room knows no other key."""
    key, fix = finding.key, finding.fix
    if reads.to_the_end:
        key, fix = (words.replace("training.dataset", "validation.dataset") for words in (key, fix))
    elif key == "training.dataset_path":
        key = reads.corpora[0].key
    return replace(finding, key=key, fix=fix)


def placed(loaded: Loaded, finding: Finding) -> Finding:
    """A finding at the place where its key was written, if it points at no file of its own."""
    if finding.key == "data.tokenizer" and loaded.config.data.tokenizer is None:
        finding = replace(finding, key="model.hf_assets_path")
    if finding.file is not None:
        return finding
    file, line, source = locate(loaded.origins, finding.key)
    return replace(finding, file=file, line=line, source=source)


def _sound_reads(loaded: Loaded) -> Iterator[Reads]:
    """What a config reads that it names by path; `stdlib` brings its own text, and a hub's is not on this machine."""
    from engine.config import DATASETS
    from engine.data.reads import training_reads, validation_reads

    config = loaded.config
    training, validation = config.training, config.validation
    named = training.dataset_path is not None or config.data.mixture
    if named and _is_sound(loaded, "training.dataset", "training.dataset_path", "data.mixture"):
        yield from (each for each in [training_reads(config)] if each.corpora[0].dataset in DATASETS[1:])
    sound = _is_sound(loaded, "validation.enable", "validation.dataset", "validation.dataset_path")
    if validation.enable and sound and validation.dataset in DATASETS[1:] and validation.dataset_path is not None:
        yield validation_reads(config)


def _look_at(reads: Reads, config: Config, until_s: float) -> tuple[list[Finding], list[Seen]]:
    """What is wrong with corpora as far as they are looked at, and what is seen of each that is here."""
    findings: list[Finding] = []
    seen: list[Seen] = []
    for named in reads.corpora:
        if not _is_here(named):
            if named.dataset != "huggingface":
                message = f"{named.key} = {named.path or 'nothing'} is not on this machine"
                findings.append(_warning("D610", named.key, message, _MISSING_FIX))
            continue
        try:
            looked = _look_at_ids(named) if named.dataset == "bins" else None
            looked = looked or _glanced(named, config, most_s=until_s - time.monotonic())
        except TitanError as mistake:
            findings += [about(reads, finding) for finding in mistake.findings]
            continue
        findings += _said_of(looked)
        seen.append(looked)
    return findings, seen


def _is_here(named: Named) -> bool:
    """Whether a corpus is in files of this machine, and its package too: what is missing is told with the packages."""
    from engine.extras import PARQUET, is_here

    path = os.path.expanduser(named.path or "")
    if named.dataset == "bins":
        return any(map(os.path.exists, (path, f"{path}.bin")))
    packages = {"parquet": (PARQUET.package,)}.get(named.dataset, ())
    return named.dataset != "huggingface" and os.path.exists(path) and all(map(is_here, packages))


def _look_at_ids(named: Named) -> Seen:
    """Files of ids by their heads; TitanError where one is not as its format says."""
    from pathlib import Path

    from engine.data.bin_formats import bin_files
    from engine.data.glance import Glance
    from engine.data.prepared import is_prepared, read_index

    corpus = Corpus(key=named.key, path=named.path or "", dataset=named.dataset)
    folder = Path(os.path.expanduser(corpus.path))
    if is_prepared(folder):
        index = read_index(folder, key=named.key)
        glance = Glance(
            files=len(index.shards),
            documents=index.documents,
            bad_lines=index.bad_lines,
            bad_files=index.bad_files,
            read_bytes=index.bytes,
            held_bytes=index.bytes,
            whole=True,
        )
        text = f"bins: {figures.many(index.documents, 'document')}, {figures.many(index.tokens, 'token')}, prepared"
        return Seen(corpus=corpus, glance=glance, text=text, is_small=True)
    files = bin_files(named.path, key=named.key)
    held, ids = sum(file.bytes for file in files), sum(len(file.ids) for file in files)
    glance = Glance(files=len(files), documents=0, bad_lines=0, bad_files=0, read_bytes=0, held_bytes=held, whole=False)
    text = f"bins: {figures.many(ids, 'token')}, {figures.memory(held)}; launch looks through them"
    return Seen(corpus=corpus, glance=glance, text=text, is_small=held <= _MOST_IDS_BYTES)


def _glanced(named: Named, config: Config, *, most_s: float) -> Seen:
    """What the beginning of a corpus holds; TitanError where there is nothing to look at."""
    from engine.data.glance import glance

    try:
        found = glance(
            *(named.dataset, named.path),
            skip_unreadable=config.data.on_bad_line == "skip",
            most_bytes=_MOST_BYTES,
            most_s=most_s,
            text_field=config.data.text_field,
        )
    except TitanError as mistake:
        raise TitanError(*(_with_key(named, finding) for finding in mistake.findings)) from None
    corpus = Corpus(key=named.key, path=named.path or "", dataset=named.dataset)
    return Seen(
        corpus=corpus,
        glance=found,
        text=_text(named.dataset, found),
        is_small=found.whole and found.read_bytes <= _most_tokenised(config) and not found.refusals,
    )


def _with_key(named: Named, finding: Finding) -> Finding:
    # What is said of other keys, such as that of a column, stays theirs.
    return replace(finding, key=named.key) if finding.key == "training.dataset_path" else finding


def _are_small(reads: Reads, seen: list[Seen], config: Config) -> bool:
    """Whether all corpora are here and small, also together, and the bytes tokenizer fits where it is the one."""
    texts_bytes = sum(each.glance.read_bytes for each in seen if each.corpus.dataset != "bins")
    all_small = len(seen) == len(reads.corpora) and all(each.is_small for each in seen)
    return all_small and texts_bytes <= _most_tokenised(config)


def _most_tokenised(config: Config) -> int:
    """Bytes of a corpus that is tokenised while one waits for validate."""
    if tokenizer_name(config) != "bytes":
        return _MOST_TOKENISED_BY_FILE_BYTES
    # Rule D608 warns of a smaller vocabulary.
    return _MOST_TOKENISED_BYTES if Facts(config).known_shape.vocab_size >= BYTE_IDS else -1


def _text(dataset: str, glance: Glance) -> str:
    """One line for people: how much was read, and what is in it."""
    documents, held = figures.many(glance.documents, "document"), figures.memory(glance.held_bytes)
    held += " (compressed)" if glance.packed else ""
    where = f" in {figures.many(glance.files, 'file')}" if glance.files > 1 else ""
    bad = [(glance.bad_lines, "bad line"), (glance.bad_files, "unreadable file")]
    left_out = "".join(f", {figures.many(number, thing)}" for number, thing in bad if number)
    if glance.whole:
        return f"{dataset}: {documents}{left_out}, all {held}{where} read"
    read = figures.memory(glance.read_bytes)
    return f"{dataset}: {documents}{left_out} in the first {read} of {held}{where}; launch reads the rest"


def _said_of(seen: Seen) -> list[Finding]:
    """What a run would be refused with, and a warning where a file's name says that it holds something else."""
    corpus = seen.corpus
    findings = [replace(finding, key=corpus.key) for finding in seen.glance.refusals]
    if not findings and corpus.dataset == "text" and corpus.path.lower().endswith(".jsonl") and seen.glance.files == 1:
        message = f"{corpus.path} is read as one document of text, and its name says JSON lines"
        section = "validation" if corpus.key.startswith("validation.") else "training"
        findings.append(_warning("D612", corpus.key, message, f'set {section}.dataset to "jsonl"'))
    return findings


def _read(
    loaded: Loaded, plan: Plan, tokenizer: Tokenizer | None, reads: Reads, seen: list[Seen]
) -> tuple[list[Finding], list[Seen]]:
    """Small corpora as launch reads them: why it would refuse them, else what it says of each."""
    from engine.data.loader import Loader
    from engine.data.summary import validation_text

    try:
        loader = Loader(loaded.config, plan, data_rank=0, tokenizer=tokenizer, reads=reads)
    except TitanError as mistake:
        return [about(reads, finding) for finding in mistake.findings], []
    if reads.to_the_end:
        texts = [validation_text(loader.summary, loader.index, loaded.config)]
    elif len(reads.corpora) == 1:
        texts = [loader.summary.text]
    else:
        texts = [corpus.text for corpus in loader.summary.corpora]
    found = zip(seen, loader.summary.corpora, texts, strict=True)
    return [], [_read_whole(each, corpus.documents, text) for each, corpus, text in found]


def _read_whole(seen: Seen, documents: int, text: str) -> Seen:
    """What is known once a corpus has been read; of ids of others, how many documents they are."""
    glance = replace(seen.glance, documents=documents, read_bytes=seen.glance.held_bytes, whole=True)
    return replace(seen, text=text, glance=glance if seen.corpus.dataset == "bins" else seen.glance)


def _is_sound(loaded: Loaded, *keys: str) -> bool:
    """Whether what was written for all these keys, and for their sections, could be read."""
    broken = loaded.broken
    return not any(key == wrong or key.startswith(f"{wrong}.") for key in keys for wrong in broken)


def _warning(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="warning", key=key, message=message, fix=fix)
