"""The data of a config, looked at before anything is started.

Knows which findings of the engine's data room concern a config, where their keys were written, and how much of a corpus
is looked at without launching. Does not know how data is read (engine/data): tokens are let go again, and the workers
read them anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.facts import Facts
from engine.keys import tokenizer_name
from engine.planner.plan import Plan
from engine.rules.corpus import BYTE_IDS
from engine.sources import Loaded, locate
from titancli import figures, report

if TYPE_CHECKING:
    from engine.data.glance import Glance
    from engine.data.large import Large
    from engine.data.reads import Reads
    from engine.data.tokenizer import Tokenizer

# A second of reading at most, of all corpora together; launch's own reading tells the rest.
_MOST_BYTES, _MOST_S = 32 << 20, 1.0
# What is tokenised too: bytes are their own ids; a tokenizer.json takes about a second for so much.
_MOST_TOKENISED_BYTES, _MOST_TOKENISED_BY_FILE_BYTES = 16 << 20, 2 << 20
_FILES = ("text", "jsonl")
_MISSING_FIX = "name one that is there where the run starts; launch refuses one that is not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One corpus of a config: the key and the path that name it, and which dataset reads it."""

    key: str
    path: str
    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one corpus; `text` says it to people."""

    corpus: Corpus
    glance: Glance
    text: str

    def to_json(self) -> dict[str, Any]:
        """An item of `here.data` of `titan validate --json`."""
        counts = asdict(replace(self.glance, refusals=()))
        del counts["refusals"]
        return {**asdict(self.corpus), **counts, "text": self.text}


def read_corpus(loaded: Loaded, plan: Plan, *, prepares: bool = True) -> str:
    """Reads the whole corpus once and says in one line what is there; TitanError where it cannot be trained on.

    A large one is prepared, unless its tokens are there already. Where nothing is to be written (not `prepares`), its
    beginning is looked at, and the run will prepare it.
    """
    from engine.data.large import large_corpora, with_prepared
    from engine.data.reads import is_streamed, training_reads
    from engine.data.tokenizer import tokenizer_of

    if is_streamed(loaded.config):
        return f"huggingface {loaded.config.training.dataset_path}: read while it arrives"
    with _places(loaded):
        tokenizer, reads = tokenizer_of(loaded.config), training_reads(loaded.config)
        large = large_corpora(reads, loaded.config, tokenizer)
        if not prepares and not all(each.is_there for each in large):
            return _look_at_large(large, loaded)
        for each in large:
            _prepare(each)
        return _read(loaded, plan, tokenizer, with_prepared(reads, large))


def _prepare(large: Large) -> None:
    """Prepares a corpus, and says what is left of it from before."""
    from engine.data.large import left_of, prepare_all
    from titancli.preparing import shown

    if large.is_there:
        # Its files may still have been cut since.
        prepare_all([large], told=lambda _: None)
        return
    with shown(large.corpus.made_from, large.folder) as show:
        prepare_all([large], told=show)
    for folder in left_of(large):
        report.say(
            f"  {folder} holds tokens of the same corpus as it was, or otherwise made: delete it if no run needs it"
        )


def _look_at_large(large: Sequence[Large], loaded: Loaded) -> str:
    """What the beginnings of large corpora hold; TitanError where a run would be refused for it."""
    told = []
    for each in large:
        corpus = Corpus(key=each.named.key, path=each.named.path or "", dataset=each.named.dataset)
        if corpus.dataset == "bins":
            told.append(f"bins: {figures.memory(each.corpus.bytes)}, looked through by the run ({each.folder})")
            continue
        seen = _look_at(corpus, loaded.config, most_s=_MOST_S)
        wrong = [finding for finding in _said_of(seen) if finding.severity == "error"]
        if wrong:
            raise TitanError(*wrong)
        told.append(f"{seen.text.rpartition('; ')[0]}; the run prepares it in {each.folder}")
    return ", ".join(told)


def look_at_data(loaded: Loaded, plan: Plan | None) -> tuple[list[Finding], list[Seen]]:
    """What the tokenizer and the corpora of a config say that are on this machine; what is not here is a warning.

    Whether a file that is not here is needed here, only a launch knows. A small corpus is tokenised where there is a
    `plan`, as launch does it; of a large one only the beginning is read.
    """
    findings, tokenizer = look_at_tokenizer(loaded)
    tokenised = None if findings else plan
    seen: list[Seen] = []
    until_s = time.monotonic() + _MOST_S
    for corpus in _corpora(loaded):
        if not os.path.exists(os.path.expanduser(corpus.path)):
            message = f"{corpus.key} = {corpus.path or 'nothing'} is not on this machine"
            findings.append(_warning("D610", corpus.key, message, _MISSING_FIX))
            continue
        try:
            looked = _look_at(corpus, loaded.config, most_s=until_s - time.monotonic())
            findings += _said_of(looked)
            if tokenised is not None and _is_quickly_tokenised(looked, loaded.config):
                with _places(loaded):
                    looked = replace(looked, text=_read(loaded, tokenised, tokenizer))
            seen.append(looked)
        except TitanError as mistake:
            findings += mistake.findings
    return [placed(loaded, finding) for finding in findings], seen


def _read(loaded: Loaded, plan: Plan, tokenizer: Tokenizer | None, reads: Reads | None = None) -> str:
    from engine.data.loader import Loader

    return Loader(loaded.config, plan, data_rank=0, tokenizer=tokenizer, reads=reads).summary.text


@contextmanager
def _places(loaded: Loaded) -> Iterator[None]:
    """Has what is refused within the block point at where its key was written."""
    try:
        yield
    except TitanError as mistake:
        raise TitanError(*(placed(loaded, finding) for finding in mistake.findings)) from None


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


def _corpora(loaded: Loaded) -> Iterator[Corpus]:
    """The corpora that a config names by path; `stdlib` brings its own text and is not looked at."""
    training, validation = loaded.config.training, loaded.config.validation
    if training.dataset in _FILES and _is_sound(loaded, "training.dataset", "training.dataset_path", "data.mixture"):
        named = [] if training.dataset_path is None else [("training.dataset_path", training.dataset_path)]
        for key, path in (*named, *(("data.mixture", path) for path in loaded.config.data.mixture)):
            yield Corpus(key=key, path=path, dataset=training.dataset)
    dataset, held_out = validation.dataset, validation.dataset_path
    sound = _is_sound(loaded, "validation.enable", "validation.dataset", "validation.dataset_path")
    if validation.enable and sound and dataset in _FILES and held_out is not None:
        yield Corpus(key="validation.dataset_path", path=held_out, dataset=dataset)


def _look_at(corpus: Corpus, config: Config, *, most_s: float) -> Seen:
    """What the beginning of a corpus holds; TitanError where there is nothing to look at."""
    from engine.data.glance import glance

    skips = config.data.on_bad_line == "skip"
    try:
        found = glance(corpus.dataset, corpus.path, skip_unreadable=skips, most_bytes=_MOST_BYTES, most_s=most_s)
    except TitanError as mistake:
        raise TitanError(*(replace(finding, key=corpus.key) for finding in mistake.findings)) from None
    return Seen(corpus=corpus, glance=found, text=_text(corpus.dataset, found))


def _text(dataset: str, glance: Glance) -> str:
    """One line for people: how much was read, and what is in it."""
    documents, held = _count(glance.documents, "document"), figures.memory(glance.held_bytes)
    where = f" in {_count(glance.files, 'file')}" if glance.files > 1 else ""
    bad = [(glance.bad_lines, "bad line"), (glance.bad_files, "unreadable file")]
    left_out = "".join(f", {_count(number, thing)}" for number, thing in bad if number)
    if glance.whole:
        return f"{dataset}: {documents}{left_out}, all {held}{where} read"
    read = figures.memory(glance.read_bytes)
    return f"{dataset}: {documents}{left_out} in the first {read} of {held}{where}; launch reads the rest"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _said_of(seen: Seen) -> list[Finding]:
    """What a run would be refused with, and a warning where a file's name says that it holds something else."""
    corpus = seen.corpus
    findings = [replace(finding, key=corpus.key) for finding in seen.glance.refusals]
    if not findings and corpus.dataset == "text" and corpus.path.lower().endswith(".jsonl") and seen.glance.files == 1:
        message = f"{corpus.path} is read as one document of text, and its name says JSON lines"
        section = "validation" if corpus.key.startswith("validation.") else "training"
        findings.append(_warning("D612", corpus.key, message, f'set {section}.dataset to "jsonl"'))
    return findings


def _is_quickly_tokenised(seen: Seen, config: Config) -> bool:
    """Whether a corpus is the one that is trained on, sound as far as was seen, and small."""
    reads_bytes = tokenizer_name(config) == "bytes"
    if reads_bytes and Facts(config).known_shape.vocab_size < BYTE_IDS:
        # Rule D608 warns of that.
        return False
    most_bytes = _MOST_TOKENISED_BYTES if reads_bytes else _MOST_TOKENISED_BY_FILE_BYTES
    small = seen.glance.whole and seen.glance.held_bytes <= most_bytes
    return small and not seen.glance.refusals and seen.corpus.key == "training.dataset_path" and not config.data.mixture


def _is_sound(loaded: Loaded, *keys: str) -> bool:
    """Whether what was written for all these keys, and for their sections, could be read."""
    broken = loaded.broken
    return not any(key == wrong or key.startswith(f"{wrong}.") for key in keys for wrong in broken)


def _warning(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="warning", key=key, message=message, fix=fix)


def placed(loaded: Loaded, finding: Finding) -> Finding:
    """A finding at the place where its key was written, if it points at no file of its own."""
    if finding.key == "data.tokenizer" and loaded.config.data.tokenizer is None:
        finding = replace(finding, key="model.hf_assets_path")
    if finding.file is not None:
        return finding
    file, line, source = locate(loaded.origins, finding.key)
    return replace(finding, file=file, line=line, source=source)
