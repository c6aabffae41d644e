"""A corpus that is read while it arrives: what is not there is waited for, what was there is not made again."""

from __future__ import annotations

import json
import shutil
import threading
import time

import numpy as np
import pytest

from engine.config import Config
from engine.data import spooling, streamed, window
from engine.data.corpus import documents
from engine.data.index import Position
from engine.data.reads import training_reads
from engine.data.records import Unreadable
from engine.data.spool import Spool, begin, read_shard
from engine.data.spool_writer import SpoolWriter, meaning_of, spooling_of
from engine.data.spooling import Allowed, spool
from engine.data.streamed import StreamLoader
from engine.data.tokenising import token_stream
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError
from engine.keys import with_values
from engine.planner.plan import plan

TEXTS = [f"{number} " * (number % 9 + 1) for number in range(60)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Windows of 4 samples, shards of some documents."""
    for module in (window, streamed):
        monkeypatch.setattr(module, "WINDOW", 4)
    for name, value in (("_FIRST_TOKENS", 40), ("_TOKENS", 90), ("_FIRST_SHARDS", 2), ("_AT_ONCE", 3)):
        monkeypatch.setattr(spooling, name, value)


@pytest.fixture
def config(json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines(*TEXTS), "training.seq_len": 16}
    return with_values(Config(), {"cluster.gpu": "cpu", "cluster.gpus_per_node": 2, "data.document_mask": True, **keys})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "stream"


def job_of(config, folder):
    return spooling_of(config, training_reads(config).corpora[0], folder, ByteTokenizer())


def everything():
    allowed = Allowed()
    allowed.raise_to(1 << 40)
    return allowed


def fill(config, folder, records=None, allowed=None):
    """What the side process does, in this one."""
    job = job_of(config, folder)
    begin(folder, meaning_of(job))
    spool(job, documents(job.dataset, job.path) if records is None else records, allowed or everything())


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "progress"}


def loader(config, folder, *, data_rank=0, start=None, **keys):
    config = with_values(config, keys)
    more = {"reads": training_reads(config), "folder": folder, "start": start or Position(), "writer": None}
    return StreamLoader(config, plan(config), data_rank=data_rank, at_work=lambda: None, **more)


def all_tokens(config):
    stream = token_stream(documents("jsonl", config.training.dataset_path), ByteTokenizer(), skip_unreadable=False)
    return stream, stream.read(0, stream.tokens)


def test_the_spool_is_the_corpus(config, folder):
    fill(config, folder)
    seen = Spool(folder)
    seen.look()
    stream, tokens = all_tokens(config)
    cut = seen.cut(0, seen.tokens)
    assert (cut.read(0, seen.tokens).tolist(), cut.starts.tolist()) == (tokens.tolist(), stream.starts.tolist())
    assert seen.ended


def test_a_cut_is_a_stream_of_its_own(config, folder):
    fill(config, folder)
    seen = Spool(folder)
    seen.look()
    stream, tokens = all_tokens(config)
    for first, last in ((0, 5), (30, 200), (39, 41), (seen.tokens - 3, seen.tokens)):
        cut = seen.cut(first, last)
        inside = stream.starts[(stream.starts >= first) & (stream.starts < last)]
        assert cut.read(0, last - first).tolist() == tokens[first:last].tolist()
        assert cut.starts.tolist() == (inside - first).tolist()


def test_every_sample_of_an_epoch_is_read_once(config, folder):
    fill(config, folder)
    _, tokens = all_tokens(config)
    samples = (len(tokens) - 1) // 16
    ranks = [loader(config, folder, data_rank=rank, **{"data.repeat": False}) for rank in (0, 1)]
    read = [ranks[rank].batches(step)[0].tokens_BS[0] for step in range(1, samples // 2 + 1) for rank in (0, 1)]
    expected = [tokens[16 * number : 16 * number + 16] for number in range(samples)]
    missing = {row.tobytes() for row in expected} - {row.tobytes() for row in read}
    assert len(missing) == samples % 2
    assert ranks[0].batches(samples // 2 + 1) is None
    assert f"{samples} sequences in all" in ranks[0].end_message


def test_positions_and_labels_end_with_documents(config, folder):
    fill(config, folder)
    batch = loader(config, folder, **{"data.shuffle": False}).batches(1)[0]
    stream, _ = all_tokens(config)
    assert batch.positions_BS.tolist() == stream.positions(np.array([0]), 16)[:, :-1].tolist()


def test_the_order_does_not_depend_on_what_is_there_when_it_is_read(config, folder, tmp_path):
    fill(config, folder)
    late = loader(config, folder)
    allowed, early = Allowed(), loader(config, tmp_path / "other")
    (tmp_path / "other").mkdir()
    thread = threading.Thread(target=fill, args=(config, tmp_path / "other", None, allowed))
    thread.start()
    for step in range(1, 40):
        allowed.raise_to(40 * step + 100)
        assert np.array_equal(early.batches(step)[0].tokens_BS, late.batches(step)[0].tokens_BS)
    allowed.close()
    thread.join()


def test_a_run_goes_on_exactly_in_another_layout(config, folder):
    fill(config, folder)
    straight = loader(config, folder, **{"cluster.gpus_per_node": 1, "training.global_batch_size": 2})
    after = loader(config, folder, data_rank=1, start=Position(step=7, samples=14))
    assert np.array_equal(straight.batches(9)[1].tokens_BS, after.batches(9)[0].tokens_BS)


def test_the_stream_begins_again_after_its_end(config, folder):
    fill(config, folder)
    _, tokens = all_tokens(config)
    samples = (len(tokens) - 1) // 16
    repeated = loader(config, folder, **{"data.shuffle": False, "cluster.gpus_per_node": 1})
    assert repeated.batches(samples + 1)[0].tokens_BS[0].tolist() == tokens[:16].tolist()


def test_no_more_is_written_than_is_wanted(config, folder):
    allowed = Allowed()
    allowed.raise_to(100)
    thread = threading.Thread(target=fill, args=(config, folder, None, allowed))
    thread.start()
    end_s = time.monotonic() + 10
    while (folder / "00001.json").exists() is False and time.monotonic() < end_s:
        time.sleep(0.01)
    time.sleep(0.05)
    assert read_shard(folder, 3) is None
    allowed.close()
    thread.join()


def test_an_interrupted_spool_goes_on_and_comes_to_the_same(config, folder, tmp_path):
    fill(config, tmp_path / "whole")

    def some():
        for number, record in enumerate(documents("jsonl", config.training.dataset_path)):
            if number == 31:
                raise KeyboardInterrupt
            yield record

    with pytest.raises(KeyboardInterrupt):
        fill(config, folder, some())
    assert read_shard(folder, 0) is not None
    assert not (folder / "ended.json").exists()
    fill(config, folder)
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_a_lost_spool_is_made_again(config, folder):
    fill(config, folder)
    before = files_of(folder)
    shutil.rmtree(folder)
    fill(config, folder)
    assert files_of(folder) == before


def test_a_spool_of_something_else_is_begun_anew(config, folder):
    fill(config, folder)
    other = with_values(config, {"data.on_bad_line": "skip"})
    begin(folder, meaning_of(job_of(other, folder)))
    assert read_shard(folder, 0) is None


def test_c38_a_record_that_cannot_be_read_is_told(config, folder):
    bad = Unreadable(file="a", line=3, byte_offset=7, reason="odd")
    with pytest.raises(TitanError, match=r"line 3 \(byte offset 7\)"):
        fill(config, folder, [*TEXTS, bad])
    fill(with_values(config, {"data.on_bad_line": "skip"}), folder, [*TEXTS, bad])
    seen = Spool(folder)
    seen.look()
    assert seen.ended


def test_a_stream_without_text_is_refused(config, folder):
    fill(config, folder, [""])
    with pytest.raises(TitanError, match="0 documents"):
        loader(config, folder).batches(1)


@pytest.fixture
def writer(config, folder):
    made = SpoolWriter(job_of(config, folder))
    yield made
    made.close()


def read_through(config, folder, writer):
    reads = training_reads(config)
    more = {"reads": reads, "folder": folder, "start": Position(), "at_work": lambda: None, "writer": writer}
    return StreamLoader(config, plan(config), data_rank=0, **more).batches(1)


def test_the_side_process_brings_what_is_wanted(config, folder, writer):
    assert read_through(config, folder, writer)[0].tokens_BS.shape == (1, 16)


def test_what_ends_the_side_process_is_told(config, folder, writer):
    writer._process.kill()
    with pytest.raises(TitanError, match="ended by signal 9"):
        read_through(config, folder, writer)


def test_what_the_side_process_cannot_read_is_told(config, folder, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": "a"}) + "\n{\n")
    writer = SpoolWriter(job_of(config, folder))
    try:
        with pytest.raises(TitanError, match="line 2"):
            read_through(config, folder, writer)
    finally:
        writer.close()
