"""All data of a config, as launch reads it: what it says of it, and what it refuses before anything is started."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.data import large
from engine.errors import Finding, TitanError
from engine.rules import check
from engine.sources import load
from titancli.whole_corpus import read_corpus

Written = Callable[..., str]
HELD_OUT = '[validation]\nenable = true\nfreq = 3\ndataset = "{dataset}"\ndataset_path = "held-out"\n'
LINES = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two and more", "three"))


def said(config: str, *, prepares: bool = True) -> str:
    loaded = load(config, environ={})
    plan = check(loaded).plan
    assert plan is not None
    return read_corpus(loaded, plan, prepares=prepares)


def refused(config: str) -> tuple[Finding, ...]:
    with pytest.raises(TitanError) as caught:
        said(config)
    return caught.value.findings


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lines_are_read_plain_and_compressed(written: Written, suffix: str) -> None:
    path = f"corpus.jsonl{suffix}"
    with gzip.open(path, "wt") if suffix else open(path, "w") as file:
        file.write(LINES)
    assert said(written("jsonl", path)) == (
        "jsonl: 3 documents, 26 tokens (bytes), 1 sequence an epoch, 8.00 epochs to read"
    )


def test_tables_are_read(written: Written) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": ["one", None, "three"]}), "corpus.parquet")
    config = written("parquet", "corpus.parquet", '[data]\ntext_field = "body"\non_bad_line = "skip"\n')
    assert said(config).startswith("parquet: 2 documents, 12 tokens (bytes), ")
    assert said(config).endswith(", 1 bad line left out")


def test_mixture_says_the_epochs_of_each_corpus(written: Written) -> None:
    for name in ("a", "b"):
        Path(name).write_text(LINES)
    told = said(written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\n"))
    assert told.startswith(
        "jsonl from 2 corpora: 6 documents, 52 tokens (bytes), 2 sequences an epoch, to read 25 % a ("
    )
    assert told.endswith(" epochs)")


def test_c38_corpus_of_a_mixture_with_nothing_in_it_is_refused_at_the_mixture(written: Written) -> None:
    Path("a").write_text(LINES)
    Path("b").write_text("")
    [finding] = refused(written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\n"))
    assert (finding.rule, finding.key, finding.file) == ("D205", "data.mixture", "run.toml")


def test_c38_corpus_of_a_mixture_that_is_too_short_is_named(written: Written) -> None:
    Path("a").write_text(LINES)
    Path("b").write_text('{"text": "x"}\n')
    [finding] = refused(written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\nrepeat = false\n"))
    assert finding.message.startswith("the corpus b has 1 document with 3 tokens, and 3 tokens < 16 (seq_len)")


def test_validation_says_what_each_reads_and_how_often(written: Written) -> None:
    Path("corpus").write_text(LINES)
    Path("held-out").write_text("x" * 200)
    _, line = said(written(more=HELD_OUT.format(dataset="text"))).split("\n  ")
    assert line == "validation: text: 1 document, 202 tokens (bytes), 12 sequences, 6 batches every 3 steps"


def test_validation_reads_so_many_batches_as_are_asked_for(written: Written) -> None:
    Path("corpus").write_text(LINES)
    Path("held-out").write_text("x" * 200)
    assert said(written(more=HELD_OUT.format(dataset="text") + "steps = 1\n")).endswith("1 batch every 3 steps")


@pytest.mark.parametrize(
    ("dataset", "held_out", "rule"),
    [("text", b"", "D205"), ("text", b"x", "D205"), ("jsonl", b"{", "D204"), ("text", None, "D202")],
    ids=["empty", "short", "cut", "gone"],
)
def test_c38_validation_corpus_that_a_run_could_not_read_is_refused_before_it(
    written: Written, dataset: str, held_out: bytes | None, rule: str
) -> None:
    Path("corpus").write_text(LINES)
    if held_out is not None:
        Path("held-out").write_bytes(held_out)
    [finding] = refused(written(more=HELD_OUT.format(dataset=dataset)))
    assert finding.rule == rule
    assert "training.dataset" not in finding.key + finding.fix


def test_large_validation_corpus_is_prepared_too(
    written: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 200)
    Path("corpus").write_text(LINES)
    Path("held-out").write_text("x" * 300)
    said(written(more=HELD_OUT.format(dataset="text")))
    assert capsys.readouterr().out.startswith("preparing text held-out (1 file, 300 B) in runs/.prepared/")


def test_what_writes_nothing_looks_at_the_beginning_of_what_is_large(
    written: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 0)
    Path("corpus").write_text(LINES)
    assert said(written(), prepares=False).startswith(
        "jsonl: 3 documents, all 59 B read; the run prepares it in runs/.prepared/"
    )
    assert not (tmp_path / "runs").exists()


def test_corpus_that_arrives_during_the_run_is_not_waited_for(written: Written) -> None:
    assert said(written("huggingface", "org/name", "[data]\nstreaming = true\n")) == (
        "huggingface org/name: read while it arrives"
    )
