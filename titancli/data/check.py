"""`titan data check`: what the data of a config holds and how far it goes, read as a run reads it.

Knows the order, and what is refused. Does not know what is looked at (looked, arriving), nor how it is said
(check_text).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import EXIT_CONFIG, EXIT_OK, Finding, TitanError
from engine.sources import Flag, Loaded
from titancli import report
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.data.excerpt import Piece
    from engine.data.loader import Loader
    from engine.data.reads import Reads
    from engine.data.tokenizer import Tokenizer
    from engine.planner.plan import Plan
    from titancli.data.arriving import Arriving
    from titancli.data.looked import Part
    from titancli.data.progress import Tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The beginning of the first sample of a run: the `sample`-th of the `corpus`-th corpus."""

    corpus: int
    sample: int
    pieces: tuple[Piece, ...]


@dataclass(slots=True, kw_only=True)
class _Found:
    """What is known so far; None where a part is not read, or could not be."""

    findings: list[Finding]
    training: Part | Arriving | None = None
    validation: Part | None = None
    sample: Sample | None = None


def check(path: str | None, preset: str | None, flags: Sequence[Flag], *, sample: int, as_json: bool) -> int:
    """Reads all data of a config and says what is in it; returns the exit code: 2 where a run is refused for it.

    `sample`: tokens of the first sample that are decoded.
    """
    from engine.rules import check as judge

    if sample < 0:
        raise TitanError(report.error("U116", f"--sample {sample} is no number of tokens", "give 0 or more"))
    loaded = load_config("data check", path, preset, flags, flags_are_enough=True)
    checked = judge(loaded)
    findings = [finding for finding in checked.findings if checked.plan is None or finding.rule.startswith("D")]
    tokenizer, wrong = (None, []) if checked.plan is None else _tokenizer(loaded, checked.plan)
    found = _Found(findings=[*findings, *wrong])
    if tokenizer is not None and checked.plan is not None and not wrong:
        _read(found, loaded, checked.plan, tokenizer, sample)
    code = EXIT_CONFIG if any(each.severity == "error" for each in found.findings) else EXIT_OK
    if as_json:
        sys.stdout.write(json.dumps(_json(found, tokenizer, checked.plan), allow_nan=False) + "\n")
        return code
    if tokenizer is not None and checked.plan is not None:
        _say(found, loaded, checked.plan, tokenizer)
    report.say_findings(found.findings)
    _say_verdict(found, loaded)
    return code


def _tokenizer(loaded: Loaded, plan: Plan) -> tuple[Tokenizer | None, list[Finding]]:
    """The tokenizer, and what is wrong with it alone or beside the model's vocabulary."""
    from engine.data.tokenizer import tokenizer_of, vocabulary_findings
    from titancli.whole_corpus import places

    tokenizer = None
    try:
        with places(loaded):
            tokenizer = tokenizer_of(loaded.config)
            if wrong := vocabulary_findings(tokenizer, plan.model.vocab_size):
                raise TitanError(*wrong)
    except TitanError as refused:
        return tokenizer, list(refused.findings)
    return tokenizer, []


def _read(found: _Found, loaded: Loaded, plan: Plan, tokenizer: Tokenizer, sample: int) -> None:
    """Reads each part; what is refused of one does not keep the other from being looked at."""
    from titancli.data.looked import first_sample, training_part, validation_part
    from titancli.data.progress import telling
    from titancli.whole_corpus import all_reads, is_while_it_arrives

    with telling() as tell:
        for reads in all_reads(loaded.config):
            if is_while_it_arrives(loaded.config, reads):
                _look_at_arriving(found, loaded, plan, reads, tokenizer, sample, tell)
                continue
            loader, wrong = _loader(loaded, plan, reads, tokenizer, tell)
            found.findings += wrong
            if loader is None:
                continue
            tell.begin("looking through texts")
            if reads.to_the_end:
                found.validation = validation_part(loader, loaded.config, tokenizer, tell)
                continue
            found.training = training_part(loader, loaded.config, tokenizer, tell)
            corpus, number, pieces = first_sample(loader, tokenizer, tokens=sample)
            found.sample = Sample(corpus=corpus, sample=number, pieces=pieces)


def _look_at_arriving(
    found: _Found, loaded: Loaded, plan: Plan, reads: Reads, tokenizer: Tokenizer, sample: int, tell: Tell
) -> None:
    from titancli.data.arriving import arriving_of
    from titancli.whole_corpus import places

    tell.begin(f"reading {reads.corpora[0].path}")
    try:
        with places(loaded, reads):
            came = arriving_of(reads, loaded.config, plan, tokenizer, tokens=sample, tell=tell)
    except TitanError as refused:
        found.findings += refused.findings
        return
    found.training = came
    found.sample = Sample(corpus=0, sample=0, pieces=came.pieces)


def _loader(
    loaded: Loaded, plan: Plan, reads: Reads, tokenizer: Tokenizer, tell: Tell
) -> tuple[Loader | None, list[Finding]]:
    """The loader that a run has, and why it would be refused: where that is for bad lines alone, one without them."""
    from engine.keys import with_values
    from titancli.whole_corpus import loader_of

    def read(loaded: Loaded) -> Loader:
        tell.begin(f"reading {reads.name}")
        return loader_of(loaded, plan, reads, tokenizer, on_record=tell.document, stream=sys.stderr)

    try:
        return read(loaded), []
    except TitanError as refused:
        wrong = list(refused.findings)
    if any(finding.rule != "D204" for finding in wrong) or _is_large(loaded, reads, tokenizer):
        return None, wrong
    lenient = replace(loaded, config=with_values(loaded.config, {"data.on_bad_line": "skip"}))
    try:
        return read(lenient), wrong
    except TitanError as refused:
        return None, [*wrong, *refused.findings]


def _is_large(loaded: Loaded, reads: Reads, tokenizer: Tokenizer) -> bool:
    """Whether reading it once more would prepare a corpus in a way that no run asks for."""
    from engine.data.large import large_corpora

    return bool(large_corpora(reads, loaded.config, tokenizer))


def _json(found: _Found, tokenizer: Tokenizer | None, plan: Plan | None) -> dict[str, Any]:
    told = None
    if tokenizer is not None and plan is not None:
        ends = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
        special = {
            name: None if id_ is None else {"id": id_, "name": tokenizer.special[id_]} for name, id_ in ends.items()
        }
        told = {"name": tokenizer.name, "vocab_used": tokenizer.vocab_used, "vocab_size": plan.model.vocab_size}
        told |= special
    return {
        "ok": not any(finding.severity == "error" for finding in found.findings),
        "findings": [finding.to_json() for finding in found.findings],
        "tokenizer": told,
        "training": None if found.training is None else found.training.to_json(),
        "validation": None if found.validation is None else found.validation.to_json(),
        "sample": None if found.sample is None else asdict(found.sample),
    }


def _say(found: _Found, loaded: Loaded, plan: Plan, tokenizer: Tokenizer) -> None:
    from titancli.data.check_text import say_arriving, say_excerpt, say_part, say_tokenizer
    from titancli.data.looked import Part

    config, width = loaded.config, report.width_of(sys.stdout)
    say_tokenizer(tokenizer, plan.model.vocab_size, width)
    if isinstance(found.training, Part):
        say_part("training", found.training, config, tokenizer, width)
    elif found.training is not None:
        say_arriving(found.training, config, tokenizer, width)
    if found.validation is not None:
        say_part("validation", found.validation, config, tokenizer, width)
    if found.sample is not None:
        say_excerpt(_title(found), found.sample.pieces, config.training.seq_len, width)


def _title(found: _Found) -> str:
    from titancli.data.looked import Part

    assert found.sample is not None, "the caller has one"
    if not isinstance(found.training, Part):
        return "the first sequence that arrives"
    corpus = found.training.corpora[found.sample.corpus]
    path = f" of {corpus.named.path}" if len(found.training.corpora) > 1 else ""
    return f"sample 0 of the run is sequence {found.sample.sample:,}{path}"


def _say_verdict(found: _Found, loaded: Loaded) -> None:
    errors = sum(finding.severity == "error" for finding in found.findings)
    if errors:
        report.say(f"{loaded.stem}: {errors} error{'' if errors == 1 else 's'}", sys.stderr, tint="bad")
    else:
        report.say(f"\nok: the data of {loaded.stem} is sound", tint="good")
