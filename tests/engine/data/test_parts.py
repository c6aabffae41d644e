"""Parts of a corpus, one after the other, are the corpus: the same documents, and the same places of what is bad."""

from __future__ import annotations

import gzip
import json
import pickle

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from engine.data.corpus import documents
from engine.data.parts import part_records, parts
from engine.errors import TitanError

LINES = st.one_of(
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}).encode()),
    st.sampled_from([b"", b"  ", b"\xef\xbb\xbf", b"{cut", b"[]", b'{"text": null}', b'{"text": "\xff"}', b"\0" * 30]),
)
FILES = st.lists(st.tuples(st.lists(LINES, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans()))
TARGETS = st.integers(1, 200)


def read_in_parts(dataset, path, target_bytes):
    cut = pickle.loads(pickle.dumps(parts(dataset, str(path), target_bytes=target_bytes)))
    return cut, [record for part in cut for record in part_records(part)]


@settings(max_examples=60)
@given(files=FILES, target_bytes=TARGETS)
def test_c38_lines_in_parts_are_the_lines_of_the_corpus(files, target_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    for number, (lines, ending, packed) in enumerate(files):
        raw = ending.join(lines)
        name = f"{number}.jsonl" + ".gz" * packed
        (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
    cut, read = read_in_parts("jsonl", folder, target_bytes)
    assert read == list(documents("jsonl", str(folder)))
    assert sum(part.bytes for part in cut) == sum(path.stat().st_size for path in folder.iterdir())


@settings(max_examples=40)
@given(
    files=st.lists(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=30), max_size=3),
    rows=st.integers(1, 7),
    target_bytes=st.integers(1, 2000),
)
def test_c38_row_groups_in_parts_are_the_rows_of_the_corpus(files, rows, target_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for number, texts in enumerate(files):
        table = pyarrow.table({"number": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=rows)
    cut, read = read_in_parts("parquet", folder, target_bytes)
    assert read == list(documents("parquet", str(folder)))
    assert sum(part.bytes for part in cut) == sum(path.stat().st_size for path in folder.iterdir())


@given(target_bytes=TARGETS)
def test_small_files_are_read_together(target_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for number in range(9):
        (folder / f"{number}.txt").write_bytes(b"x" * number * 10)
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    cut, read = read_in_parts("text", folder, target_bytes)
    assert read == list(documents("text", str(folder)))
    assert all(part.bytes >= target_bytes for part in cut[:-1])


def test_a_large_table_is_cut_between_its_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{number:0100}" for number in range(100)]}), path, row_group_size=10)
    cut, _ = read_in_parts("parquet", path, path.stat().st_size // 5)
    assert [(stretch.begin, stretch.end) for part in cut for stretch in part.stretches] == [
        *((begin, begin + 2) for begin in range(0, 10, 2)),
    ]


def test_a_row_group_that_is_broken_takes_no_other_with_it(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [str(number) * 50 for number in range(50)]}), path, row_group_size=10)
    raw = bytearray(path.read_bytes())
    begin = parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    raw[begin : begin + 40] = b"\xff" * 40
    path.write_bytes(raw)
    _, read = read_in_parts("parquet", path, 1)
    assert read == list(documents("parquet", str(path)))
    (bad,) = (record for record in read if not isinstance(record, str))
    assert (bad.line, len(read)) == (None, 41)
    assert bad.reason.endswith("the row group of row 21 is left out from there")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_compressed_file_is_one_part(name, tmp_path):
    (tmp_path / name).write_bytes(b"x" * 100)
    assert len(parts("jsonl", str(tmp_path), target_bytes=10)) == 1


def test_a_large_file_that_cannot_be_opened_is_told_once(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    _, read = read_in_parts("jsonl", tmp_path, 1)
    assert read == list(documents("jsonl", str(tmp_path)))
    assert [record.reason for record in read] == ["Too many levels of symbolic links"]


def test_the_standard_library_is_one_part():
    (part,) = parts("stdlib", None, target_bytes=1)
    assert next(part_records(part)) == next(documents("stdlib", None))


@pytest.mark.parametrize(("dataset", "rule"), [("text", "D202"), ("nothing", "D201"), ("huggingface", "D209")])
def test_parts_of_no_corpus_are_refused_as_the_corpus_is(dataset, rule):
    with pytest.raises(TitanError, match=rule):
        parts(dataset, None, target_bytes=1)
