"""`titan data prepare`: a corpus becomes tokens on disk once, for all runs to map.

Knows which corpora of a config there are, where their tokens go, and what is said of them. Does not know how they are
made (engine/data/prepare), nor how it looks meanwhile (titancli/preparing).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import EXIT_INTERRUPTED, EXIT_OK, TitanError
from engine.sources import Flag, Loaded
from titancli import figures, report
from titancli.corpus import look_at_tokenizer, placed
from titancli.disk import decimal
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.data.large import Large
    from engine.data.prepared import PreparedIndex
    from engine.data.reads import Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The tokens of one corpus; `seconds` is None where they were there already."""

    named: Named
    folder: Path
    index: PreparedIndex
    seconds: float | None
    found_by_runs: bool

    @property
    def section(self) -> str:
        """Of the config, that names the corpus."""
        return "validation" if self.named.key.startswith("validation.") else "training"

    def to_json(self) -> dict[str, Any]:
        """An item of `corpora`; `set` is what trains on it."""
        index = self.index
        counts = ("documents", "tokens", "bad_lines", "bad_files", "longest_document", "largest_id", "crc32", "bytes")
        return {
            "key": self.named.key,
            "dataset": self.named.dataset,
            "path": self.named.path,
            "folder": str(self.folder),
            "tokenizer": index.tokenizer.name,
            **{name: getattr(index, name) for name in counts},
            "shards": len(index.shards),
            "seconds": self.seconds,
            "found_by_runs": self.found_by_runs,
            "set": {f"{self.section}.dataset": "bins", f"{self.section}.dataset_path": os.path.abspath(self.folder)},
        }

    def lines(self) -> list[str]:
        """For people: what is there, and how a run comes to read it."""
        index = self.index
        took = "was there already" if self.seconds is None else f"in {figures.duration(self.seconds)}"
        bad = [(index.bad_lines, "bad line"), (index.bad_files, "unreadable file")]
        left_out = "".join(f", {figures.many(number, thing)} left out" for number, thing in bad if number)
        lines = [
            f"{self.named.dataset} {self.named.path}: {figures.many(index.documents, 'document')}, "
            f"{figures.many(index.tokens, 'token')} ({index.tokenizer.name}){left_out}",
            f"  {decimal(index.bytes)} in {self.folder}, {took}",
        ]
        if self.found_by_runs:
            return [*lines, "  runs of this config find and map it by themselves"]
        return [
            *lines,
            f"  to read it, set in [{self.section}]:",
            '    dataset = "bins"',
            f"    dataset_path = {json.dumps(os.path.abspath(self.folder))}",
        ]


def prepare(
    path: str | None,
    preset: str | None,
    flags: Sequence[Flag],
    *,
    output: str | None,
    workers: int | None,
    force: bool,
    as_json: bool,
) -> int:
    """Prepares all corpora of a config that are files; returns the exit code. TitanError where one cannot be."""
    loaded = load_config("data prepare", path, preset, flags)
    _require(loaded, workers)
    begin_s = time.monotonic()
    try:
        made = _prepare_all(loaded, output, workers=workers, force=force, quiet=as_json)
    except KeyboardInterrupt:
        report.say("interrupted; parts that are whole are kept, and the same command goes on from them", sys.stderr)
        return EXIT_INTERRUPTED
    except TitanError as mistake:
        raise TitanError(*(placed(loaded, finding) for finding in mistake.findings)) from None
    if as_json:
        told = {"corpora": [each.to_json() for each in made], "seconds": time.monotonic() - begin_s}
        report.say(json.dumps(told, indent=1))
        return EXIT_OK
    for line in (line for each in made for line in each.lines()):
        report.say(line)
    if not made:
        report.say("nothing to prepare: no corpus of this config is in files that are still to be tokenised")
    return EXIT_OK


def _require(loaded: Loaded, workers: int | None) -> None:
    """Raises what is wrong with the config as far as its data is concerned, and with the flags."""
    from engine.rules import check

    wrong = [finding for finding in check(loaded).findings if finding.severity == "error"]
    about_data = [finding for finding in wrong if finding.rule.startswith(("S", "D"))]
    if workers is not None and workers < 1:
        about_data.append(report.error("U108", f"--workers {workers} is no number of processes", "give 1 or more"))
    about_data += [placed(loaded, finding) for finding in look_at_tokenizer(loaded)[0]]
    if about_data:
        raise TitanError(*about_data)


def _prepare_all(loaded: Loaded, output: str | None, *, workers: int | None, force: bool, quiet: bool) -> list[Made]:
    from engine.data.large import LARGE_BYTES, can_be_prepared, large_of
    from engine.data.prepare import prepare as prepare_corpus
    from engine.data.prepare import workers_here
    from engine.data.tokenizer import tokenizer_of
    from titancli.preparing import shown

    tokenizer = tokenizer_of(loaded.config)
    usual = [large_of(named, loaded.config, tokenizer) for named in _corpora(loaded) if can_be_prepared(named)]
    made = []
    for each in usual if output is None else _placed_in(Path(os.path.expanduser(output)), usual):
        was_there, began_s = each.is_there and not force, time.monotonic()
        show = nullcontext(lambda _: None) if quiet or was_there else shown(each.corpus.made_from, each.folder)
        with show as told:
            index = prepare_corpus(each.corpus, each.folder, workers=workers or workers_here(), force=force, told=told)
        made.append(
            Made(
                named=each.named,
                folder=each.folder,
                index=index,
                seconds=None if was_there else time.monotonic() - began_s,
                found_by_runs=output is None and each.corpus.text_bytes > LARGE_BYTES,
            )
        )
    return made


def _corpora(loaded: Loaded) -> list[Named]:
    """All corpora of a config, each once; TitanError where one is read while it arrives."""
    from engine.data.reads import is_streamed, training_reads, validation_reads

    config = loaded.config
    if is_streamed(config):
        fix = "set data.streaming to false, which downloads it first, or launch the run as it is"
        raise TitanError(
            report.error("U109", "with data.streaming the corpus is read while it arrives", fix, key="data.streaming")
        )
    named = list(training_reads(config).corpora)
    if config.validation.enable and config.validation.dataset is not None:
        named += validation_reads(config).corpora
    return list({(each.dataset, each.path): each for each in reversed(named)}.values())[::-1]


def _placed_in(output: Path, found: Sequence[Large]) -> list[Large]:
    """The same corpora with their tokens in a folder that was asked for; of several, each in one of its own below."""
    if len(found) == 1:
        return [replace(found[0], folder=output)]
    names = [Path(each.named.path or each.named.dataset).stem for each in found]
    return [replace(each, folder=output / f"{number}-{names[number]}") for number, each in enumerate(found)]
