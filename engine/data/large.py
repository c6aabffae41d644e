"""Large corpora of a run are prepared once, and then mapped; small ones every rank tokenises in memory.

Knows which is which, and the folder that the tokens of a corpus have among those of all runs. Does not know how they
are made (prepare.py), nor who makes them while others wait (engine/preparing.py, titancli/whole_corpus.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import Config
from engine.data.prepare import State, prepare, workers_here
from engine.data.prepared import SOURCES, is_prepared
from engine.data.reads import Named, Reads
from engine.data.survey import Survey, survey
from engine.data.tokenizer import Tokenizer

LARGE_BYTES = 64 << 20
"""A corpus with more text than this is prepared, one with less is tokenised in memory by every rank."""

_IN_FILES = ("text", "jsonl", "parquet", "huggingface", "bins")
HIDDEN = ".prepared"
"""The folder of a dump folder for tokens: its name begins with a dot, so that it is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A corpus that is too large to be tokenised by every rank, and the folder for its tokens."""

    named: Named
    corpus: Survey
    folder: Path

    @property
    def is_there(self) -> bool:
        """Whether it is prepared already."""
        return is_prepared(self.folder)


def prepared_root(config: Config) -> Path:
    """`data.prepared_folder`, else the hidden folder in `job.dump_folder`."""
    if config.data.prepared_folder is not None:
        return Path(os.path.expanduser(config.data.prepared_folder))
    return Path(os.path.expanduser(config.job.dump_folder)) / HIDDEN


def large_corpora(reads: Reads, config: Config, tokenizer: Tokenizer) -> list[Large]:
    """The corpora with more than LARGE_BYTES of text, by the sizes of files; TitanError where one is not there."""
    found = [large_of(named, config, tokenizer) for named in reads.corpora if can_be_prepared(named)]
    return [each for each in found if each.corpus.text_bytes > LARGE_BYTES]


def can_be_prepared(named: Named) -> bool:
    """Whether a corpus is in files that no preparation has written."""
    is_there = named.dataset == "bins" and is_prepared(os.path.expanduser(named.path or ""))
    return named.dataset in _IN_FILES and not is_there


def large_of(named: Named, config: Config, tokenizer: Tokenizer) -> Large:
    """A corpus, whatever its size, with the folder that runs look for its tokens in."""
    corpus = survey(named, config, tokenizer)
    return Large(named=named, corpus=corpus, folder=prepared_root(config) / corpus.name)


def with_prepared(reads: Reads, large: Sequence[Large]) -> Reads:
    """The same corpora, those that are large read from their folders."""
    folders = {each.named: str(each.folder) for each in large}
    return replace(reads, corpora=tuple(replace(named, prepared=folders.get(named)) for named in reads.corpora))


def prepare_all(large: Sequence[Large], *, told: Callable[[State], None]) -> None:
    """Prepares what is not there; TitanError as `prepare`."""
    for each in large:
        prepare(each.corpus, each.folder, workers=workers_here(), told=told)


def left_of(large: Large) -> tuple[Path, ...]:
    """Other folders with tokens of the same corpus: of files, a tokenizer or a policy that it has no more."""
    root, found = large.folder.parent, []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder != large.folder and _path_of(folder) == large.corpus.made_from.path:
            found.append(folder)
    return tuple(found)


def _path_of(folder: Path) -> str | None:
    """The corpus that a prepared folder is of; None where it does not say."""
    try:
        return str(json.loads((folder / SOURCES).read_bytes())["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
