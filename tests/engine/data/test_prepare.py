"""What is prepared is what is read in memory, however it was made."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import Config
from engine.data import prepare as preparing
from engine.data import prepare_text, room
from engine.data.corpus import documents
from engine.data.folder_lock import alone_with
from engine.data.prepare import prepare
from engine.data.prepared import open_prepared
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenising import token_stream
from engine.data.tokenizer import ByteTokenizer
from engine.errors import TitanError
from engine.keys import with_values

KEY = "training.dataset_path"
TEXTS = ["ab", "", "cde", "f" * 40, "é", "g\n"]


@pytest.fixture(autouse=True)
def parts_of_two_bytes(monkeypatch):
    monkeypatch.setattr(prepare_text, "_SMALLEST_BYTES", 2)


@pytest.fixture
def corpus(tmp_path):
    """A folder of texts, one file each."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text, "utf-8")
    return folder


def looked_at(path, dataset="text", **keys):
    config = with_values(Config(), {f"data.{key}": value for key, value in keys.items()})
    return survey(Named(dataset=dataset, path=str(path), key=KEY), config, ByteTokenizer())


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def refused(rule, *arguments, **more):
    with pytest.raises(TitanError) as caught:
        prepare(*arguments, **{"workers": 0, **more})
    assert caught.value.findings[0].rule == rule
    return caught.value.findings[0]


def test_prepared_tokens_are_those_that_are_read_in_memory(corpus, tmp_path):
    index = prepare(looked_at(corpus), tmp_path / "out", workers=0)
    read = token_stream(documents("text", str(corpus)), ByteTokenizer(), skip_unreadable=False)
    mapped = open_prepared(tmp_path / "out", key=KEY, tokenizer=ByteTokenizer(), vocab_size=258)
    assert np.array_equal(mapped.read(0, mapped.tokens), read.read(0, read.tokens))
    assert np.array_equal(mapped.starts, read.starts)
    assert (mapped.crc32, mapped.tokens, mapped.documents) == (read.crc32, read.tokens, read.documents)
    assert (len(index.shards), index.longest_document, index.largest_id) == (5, 42, 257)


def test_two_workers_write_what_none_does(corpus, tmp_path):
    for workers in (0, 2):
        prepare(looked_at(corpus), tmp_path / str(workers), workers=workers)
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")


def test_a_second_call_does_nothing(corpus, tmp_path, monkeypatch):
    first = prepare(looked_at(corpus), tmp_path / "out", workers=0)
    monkeypatch.setattr(preparing, "worked_through", None)
    assert prepare(looked_at(corpus), tmp_path / "out", workers=0) == first


def stopped_after(parts):
    """Interrupts, as Ctrl-C does, when so many parts are whole."""

    def told(state):
        if state.parts_done == parts:
            raise KeyboardInterrupt

    return told


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_an_interrupted_preparation_goes_on_and_comes_to_the_same(parts, corpus, tmp_path):
    prepare(looked_at(corpus), tmp_path / "whole", workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare(looked_at(corpus), tmp_path / "out", workers=0, told=stopped_after(parts))
    kept = {note.name: note.stat().st_mtime_ns for note in (tmp_path / "out/parts").glob("*.json")}
    told = []
    prepare(looked_at(corpus), tmp_path / "out", workers=0, told=told.append)
    assert (len(kept), told[0].parts_done) == (parts, parts)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_part_whose_files_were_cut_is_made_again(corpus, tmp_path):
    prepare(looked_at(corpus), tmp_path / "whole", workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare(looked_at(corpus), tmp_path / "out", workers=0, told=stopped_after(2))
    (tmp_path / "out/tokens-00000.bin").write_bytes(b"")
    prepare(looked_at(corpus), tmp_path / "out", workers=0)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_preparation_that_is_killed_goes_on(corpus, tmp_path):
    """kill -9 of the one that asks, in the midst of parts."""
    prepare(looked_at(corpus), tmp_path / "whole", workers=0)
    script = f"""
import os, signal
from engine.data import prepare_text, room
prepare_text._SMALLEST_BYTES = 2
from tests_of_prepare import looked_at
from engine.data.prepare import prepare
def told(state):
    if state.parts_done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(looked_at({str(corpus)!r}), __import__("pathlib").Path({str(tmp_path / "out")!r}), workers=1, told=told)
"""
    shutil.copy(__file__, tmp_path / "tests_of_prepare.py")
    root = str(Path(preparing.__file__).parents[2])
    path = os.pathsep.join([root, str(tmp_path)])
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out/index.json").exists()
    prepare(looked_at(corpus), tmp_path / "out", workers=0)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_c38_the_first_bad_line_is_told_and_nothing_is_committed(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "fine"}\n')
    (folder / "b.jsonl").write_text('{"text": "fine"}\n{"text": 1}\n')
    (folder / "c.jsonl").write_text("{\n")
    found = refused("D204", looked_at(folder, "jsonl"), tmp_path / "out")
    assert (found.file, found.line, found.key) == (str(folder / "b.jsonl"), 2, KEY)
    assert "byte offset 17" in found.message
    assert not (tmp_path / "out/index.json").exists()


def test_bad_lines_are_counted_where_they_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n{"text": 1}\nno\n')
    index = prepare(looked_at(path, "jsonl", on_bad_line="skip"), tmp_path / "out", workers=0)
    assert (index.documents, index.bad_lines, [bad.line for bad in index.bad]) == (1, 2, [2, 3])


def test_a_corpus_without_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    refused("D205", looked_at(tmp_path / "a.txt"), tmp_path / "out")


def test_a_folder_with_other_tokens_is_replaced_only_by_force(corpus, tmp_path):
    prepare(looked_at(corpus), tmp_path / "out", workers=0)
    (corpus / "0.txt").write_text("changed")
    refused("D225", looked_at(corpus), tmp_path / "out")
    prepare(looked_at(corpus), tmp_path / "again", workers=0)
    prepare(looked_at(corpus), tmp_path / "out", workers=0, force=True)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "again")


def test_a_folder_with_somebody_elses_files_is_left_alone(corpus):
    assert "0.txt" in refused("D225", looked_at(corpus), corpus, force=True).message


@pytest.mark.parametrize("change", [{"on_bad_line": "skip"}, {"text_field": "body"}])
def test_another_policy_is_another_name(change, corpus):
    assert looked_at(corpus).name != looked_at(corpus, **change).name


def test_a_changed_file_is_another_name(corpus):
    before = looked_at(corpus).name
    os.utime(corpus / "0.txt", ns=(1, 1))
    assert looked_at(corpus).name != before


def test_a_file_that_changes_while_it_is_read_is_told(corpus, tmp_path):
    seen = looked_at(corpus)
    (corpus / "3.txt").write_text("other")
    assert "3.txt was changed" in refused("D227", seen, tmp_path / "out").message


DEADLY = """
import os, signal

class Deadly:
    name, files, bytes = "a deadly part", (), 1

    def shard(self, number, done, vocab_used):
        raise AssertionError("nothing is made of it")

    def records(self):
        return iter(())

    def make(self, work, number, tell):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_dies_is_told(corpus, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    part = importlib.import_module("deadly").Deadly()
    found = refused("D227", replace(looked_at(corpus), parts=(part,)), tmp_path / "out", workers=1)
    assert "a deadly part ended by itself: SIGKILL" in found.message


def test_a_full_disk_is_told_and_what_is_whole_is_kept(corpus, tmp_path, monkeypatch):
    written = preparing.prepare.__globals__["written"]
    notes = []

    def full(file):
        notes.append(file)
        if len(notes) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        return written(file)

    monkeypatch.setattr(preparing, "written", full)
    refused("D226", looked_at(corpus), tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(prepare_text, "_SMALLEST_BYTES", 2)
    told = []
    prepare(looked_at(corpus), tmp_path / "out", workers=0, told=told.append)
    assert told[0].parts_done == 2


def test_a_folder_that_cannot_be_written_is_not_laid_at_the_corpus(corpus, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file/out"):
        found = refused("D227", looked_at(corpus), folder)
        assert (found.key, "can be written" in found.fix) == ("data.prepared_folder", True)


def test_a_corpus_that_cannot_be_read_is_not_laid_at_the_folder(corpus, tmp_path, monkeypatch):
    seen, text = looked_at(corpus), str(tmp_path / "text/3.txt")

    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error", text)

    monkeypatch.setattr(preparing, "worked_through", broken)
    found = refused("D227", seen, tmp_path / "out")
    assert (found.key, found.fix) == (seen.key, f"make {text} one that can be read")


@pytest.mark.parametrize(("free", "notes"), [(190, 0), (250, 1)])
def test_a_disk_without_room_is_told_before_and_while_it_fills(free, notes, corpus, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    # The first text, two bytes, becomes four ids in 8 bytes and one start in 8: by those 49 take 196, and the rest 376.
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: usage._replace(free=free))
    message = refused("D226", looked_at(corpus), tmp_path / "out").message
    assert "0.00 MB free" in message
    assert "GB" not in message
    assert len([*(tmp_path / "out/parts").glob("*.json")]) == notes


def test_another_that_prepares_the_same_folder_waits(corpus, tmp_path):
    (tmp_path / "out").mkdir()
    held = alone_with(tmp_path / "out", lambda _: None)
    held.__enter__()
    told = []

    def waits(state):
        told.append(state.waits_for)
        if len(told) == 1:
            held.__exit__(None, None, None)

    prepare(looked_at(corpus), tmp_path / "out", workers=0, told=waits)
    assert str(os.getpid()) in told[0]


def test_ids_of_others_are_indexed_where_they_lie(tmp_path):
    np.array([1, 2, 257, 3, 257, 4], dtype="<u2").tofile(tmp_path / "x.bin")
    index = prepare(looked_at(tmp_path / "x.bin", "bins"), tmp_path / "out", workers=0)
    stream = open_prepared(tmp_path / "out", key=KEY)
    assert (stream.read(0, 6).tolist(), stream.starts.tolist()) == ([1, 2, 257, 3, 257, 4], [0, 3, 5])
    assert (index.largest_id, index.shards[0].file) == (257, str(tmp_path / "x.bin"))
    (tmp_path / "x.bin").write_bytes(b"\0\0")
    with pytest.raises(TitanError, match="D221"):
        open_prepared(tmp_path / "out", key=KEY)


def test_one_large_file_of_lines_is_made_in_parts(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(50)))
    monkeypatch.setattr(prepare_text, "_SMALLEST_BYTES", 100)
    corpus = looked_at(path, "jsonl")
    index = prepare(corpus, tmp_path / "out", workers=0)
    read = token_stream(documents("jsonl", str(path)), ByteTokenizer(), skip_unreadable=False)
    assert (len(corpus.parts), index.crc32) == (10, read.crc32)
    assert np.array_equal(open_prepared(tmp_path / "out", key=KEY).starts, read.starts)


def test_rows_of_a_dataset_are_made_in_parts(tmp_path, monkeypatch):
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"text": [f"row {number}" for number in range(30)] + [None]})
    rows.save_to_disk(str(tmp_path / "rows"))
    monkeypatch.setattr(prepare_text, "_SMALLEST_BYTES", 100)
    corpus = looked_at(tmp_path / "rows", "huggingface", on_bad_line="skip")
    index = prepare(corpus, tmp_path / "out", workers=0)
    read = token_stream(documents("huggingface", str(tmp_path / "rows")), ByteTokenizer(), skip_unreadable=True)
    assert (index.crc32, index.documents, [bad.line for bad in index.bad]) == (read.crc32, 30, [31])
    assert len(corpus.parts) > 2
