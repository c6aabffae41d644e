"""What validate sees of every kind of corpus that is on this machine, without launching."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.data import glance
from engine.rules import check
from engine.sources import load
from titancli import corpus
from titancli.corpus import Seen, look_at_data

Written = Callable[..., str]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two and more", "three"))


def looked(config: str) -> tuple[list[str], list[Seen]]:
    """Ids of what is said, and what was seen."""
    loaded = load(config, environ={})
    findings, seen = look_at_data(loaded, check(loaded).plan)
    return [f"{finding.rule} {finding.key}" for finding in findings], seen


def test_compressed_lines_are_looked_at(written: Written) -> None:
    with gzip.open("corpus.jsonl.gz", "wt") as file:
        file.write(LINES)
    said, [seen] = looked(written("jsonl", "corpus.jsonl.gz"))
    assert (said, seen.glance.whole, seen.glance.packed) == ([], True, True)
    assert seen.text == "jsonl: 3 documents, 26 tokens (bytes), 1 sequence an epoch, 8.00 epochs to read"


def test_of_compressed_lines_as_much_text_is_read_as_of_others(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_MOST_BYTES", 1 << 16)
    with gzip.open("corpus.jsonl.gz", "wt") as file:
        file.write(LINES * 10_000)
    _, [seen] = looked(written("jsonl", "corpus.jsonl.gz"))
    assert not seen.glance.whole
    assert seen.glance.held_bytes < seen.glance.read_bytes <= 1 << 16
    assert " in the first 64.0 KiB of " in seen.text
    assert seen.text.endswith(" KiB (compressed); launch reads the rest")


def test_tables_are_looked_at_in_the_column_that_is_named(written: Written) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": ["one", "three"]}), "corpus.parquet")
    said, [seen] = looked(written("parquet", "corpus.parquet", '[data]\ntext_field = "body"\n'))
    assert (said, seen.glance.documents) == ([], 2)
    said, seen = looked(written("parquet", "corpus.parquet"))
    assert (said, seen) == (["D208 data.text_field"], [])


def test_ids_of_others_are_looked_through(written: Written) -> None:
    np.array([256, 97, 98, 257] * 20, dtype=np.uint16).tofile("ids.bin")
    said, [seen] = looked(written("bins", "ids.bin"))
    assert (said, seen.glance.documents, seen.glance.whole) == ([], 20, True)
    assert seen.text == "bins: 20 documents, 80 tokens (bytes), 4 sequences an epoch, 2.00 epochs to read"


def test_ids_beyond_the_models_table_are_refused(written: Written) -> None:
    np.full(80, 300, dtype=np.uint16).tofile("ids.bin")
    assert looked(written("bins", "ids.bin"))[0] == ["D223 model.shape.vocab_size"]


def test_many_ids_of_others_are_left_to_launch(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_MOST_IDS_BYTES", 100)
    np.full(80, 97, dtype=np.uint16).tofile("ids.bin")
    said, [seen] = looked(written("bins", "ids.bin"))
    assert (said, seen.text) == ([], "bins: 80 tokens, 160 B; launch looks through them")


def test_prepared_tokens_are_opened_whatever_their_size(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    from titancli.data.prepare import prepare

    Path("corpus").write_text(LINES)
    prepare(written(), None, (), output="tokens", workers=1, force=False, as_json=True)
    monkeypatch.setattr(corpus, "_MOST_IDS_BYTES", 0)
    said, [seen] = looked(written("bins", "tokens"))
    assert (said, seen.glance.documents) == ([], 3)
    assert seen.text.startswith("bins: 3 documents, 26 tokens (bytes), ")


def test_corpora_of_the_hub_are_not_on_this_machine_and_no_doubt(written: Written) -> None:
    assert looked(written("huggingface", "org/name")) == ([], [])


@pytest.mark.parametrize("dataset", ["text", "jsonl", "parquet", "bins"])
def test_corpora_in_files_that_are_not_here_are_doubted(written: Written, dataset: str) -> None:
    assert looked(written(dataset, "gone")) == (["D610 training.dataset_path"], [])


def test_mixture_of_small_corpora_says_the_share_and_the_epochs_of_each(written: Written) -> None:
    Path("a").write_text(LINES)
    Path("b").write_text(LINES * 40)
    said, [first, second] = looked(written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\n"))
    assert said == []
    assert first.text.startswith("jsonl a: 3 documents, 26 tokens, 1 sequence an epoch, 25 % of what is read, ")
    assert second.text.startswith("jsonl b: 120 documents, 1,040 tokens, 64 sequences an epoch, 75 % of what is read, ")


def test_corpora_that_are_small_one_by_one_may_be_too_much_together(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_MOST_TOKENISED_BYTES", 100)
    for name in ("a", "b"):
        Path(name).write_text(LINES)
    _, seen = looked(written(path=None, more="[data]\nmixture = { a = 1.0, b = 3.0 }\n"))
    assert {each.text for each in seen} == {"jsonl: 3 documents, all 59 B read"}


def test_c38_small_validation_corpus_is_read_as_launch_reads_it(written: Written) -> None:
    Path("corpus").write_text(LINES)
    Path("held-out").write_text("x" * 200)
    more = '[validation]\nenable = true\ndataset = "text"\ndataset_path = "held-out"\n'
    said, [_, seen] = looked(written(more=more))
    assert said == []
    assert seen.text == "text: 1 document, 202 tokens (bytes), 12 sequences, 6 batches every 500 steps"
    Path("held-out").write_text("x")
    assert looked(written(more=more))[0] == ["D205 training.seq_len"]


def test_time_that_is_over_ends_the_look_at_what_is_not_read_yet(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.write(LINES * 100)
    options = {"skip_unreadable": False, "most_bytes": 1 << 20, "most_s": -1.0}
    seen = glance.glance("jsonl", str(tmp_path / "corpus.jsonl.gz"), **options)  # type: ignore[arg-type]
    assert (seen.documents, seen.whole) == (1, False)
