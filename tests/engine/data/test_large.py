"""A large corpus is read from prepared tokens, a small one is not, and nobody sees a difference."""

from __future__ import annotations

import numpy as np
import pytest

from engine.config import Config
from engine.data import large
from engine.data.large import large_corpora, left_of, prepare_all, prepared_root, with_prepared
from engine.data.loader import Loader
from engine.data.reads import training_reads
from engine.data.tokenizer import ByteTokenizer
from engine.keys import with_values
from engine.planner.plan import plan


@pytest.fixture
def config(json_lines, tmp_path):
    """A run over JSON lines whose tokens are prepared below the test's folder."""
    path = json_lines(*(f"document {number} " * (number % 7 + 1) for number in range(40)))
    keys = {"training.dataset": "jsonl", "training.dataset_path": path, "training.seq_len": 32}
    keys |= {"job.dump_folder": str(tmp_path / "runs"), "data.document_mask": True, "cluster.gpus_per_node": 2}
    return with_values(Config(), {"cluster.gpu": "cpu", **keys})


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(large, "LARGE_BYTES", 0)


def found_in(config):
    return large_corpora(training_reads(config), config, ByteTokenizer())


@pytest.mark.usefixtures("everything_is_large")
def test_prepared_and_in_memory_give_the_same_samples(config):
    found = found_in(config)
    prepare_all(found, told=lambda _: None)
    in_memory = Loader(config, plan(config), data_rank=1)
    mapped = Loader(config, plan(config), data_rank=1, reads=with_prepared(training_reads(config), found))
    for step in (1, 2, 30):
        for one, other in zip(in_memory.batches(step), mapped.batches(step), strict=True):
            for name in ("tokens_BS", "labels_BS", "positions_BS"):
                assert np.array_equal(getattr(one, name), getattr(other, name))
    assert in_memory.summary == mapped.summary


def test_a_small_corpus_is_not_prepared(config):
    assert found_in(config) == []


@pytest.mark.usefixtures("everything_is_large")
def test_the_tokens_of_a_dump_folder_are_hidden_in_it(config, tmp_path):
    assert found_in(config)[0].folder.parent == tmp_path / "runs" / ".prepared"
    assert prepared_root(with_values(config, {"data.prepared_folder": "/x"})).as_posix() == "/x"


@pytest.mark.usefixtures("everything_is_large")
def test_the_standard_library_and_prepared_tokens_are_not_prepared(config):
    assert found_in(with_values(config, {"training.dataset": "stdlib"})) == []
    found = found_in(config)
    prepare_all(found, told=lambda _: None)
    bins = {"training.dataset": "bins", "training.dataset_path": str(found[0].folder)}
    assert found_in(with_values(config, bins)) == []


@pytest.mark.usefixtures("everything_is_large")
def test_prepared_tokens_are_a_corpus_of_their_own(config):
    found = found_in(config)
    prepare_all(found, told=lambda _: None)
    bins = with_values(config, {"training.dataset": "bins", "training.dataset_path": str(found[0].folder)})
    by_path, by_text = Loader(bins, plan(bins), data_rank=0), Loader(config, plan(config), data_rank=0)
    assert np.array_equal(by_path.batches(3)[0].tokens_BS, by_text.batches(3)[0].tokens_BS)
    assert by_path.summary.crc32 == by_text.summary.crc32


@pytest.mark.usefixtures("everything_is_large")
def test_tokens_of_the_corpus_as_it_was_are_told(config):
    before = found_in(config)[0]
    prepare_all([before], told=lambda _: None)
    after = found_in(with_values(config, {"data.on_bad_line": "skip"}))[0]
    assert left_of(after) == (before.folder,)
    assert left_of(before) == ()
