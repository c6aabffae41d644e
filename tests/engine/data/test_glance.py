"""A look at a corpus finds what is wrong at its beginning, reads no more than it may, and says how much that was."""

from __future__ import annotations

import gzip
import json

import pytest
from backports import zstd

from engine.data.glance import glance
from engine.errors import TitanError

LINES = [b'{"text": "a"}\n', b'{"text": "b"}\n', b'{"text": "c\n', b'{"text": "d"}\n', b'{"text": "e"}\n']


def look(dataset, path, *, skip=False, most_bytes=1 << 20, most_s=60.0):
    return glance(dataset, str(path), skip_unreadable=skip, most_bytes=most_bytes, most_s=most_s)


def refusal(dataset, path, **more):
    (only,) = look(dataset, path, **more).refusals
    return only


@pytest.fixture
def cut(tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(LINES))
    return path


def test_c38_a_cut_line_is_found_with_its_line_and_byte_offset(cut):
    found = refusal("jsonl", cut)
    assert (found.rule, found.file, found.line) == ("D204", str(cut), 3)
    assert found.message.startswith("line 3 (byte offset 28) of the corpus cannot be read: it is not JSON")


def test_c38_a_cut_line_that_is_skipped_is_counted(cut):
    seen = look("jsonl", cut, skip=True)
    assert (seen.documents, seen.bad_lines, seen.refusals, seen.whole) == (4, 1, (), True)


PACKED = {"gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("kind", PACKED)
def test_c38_a_cut_line_of_a_compressed_file_is_found_or_counted(kind, tmp_path):
    path = tmp_path / f"cut.jsonl.{kind}"
    path.write_bytes(PACKED[kind](b"".join(LINES)))
    found, seen = refusal("jsonl", path), look("jsonl", path, skip=True)
    assert (found.rule, found.file, found.line) == ("D204", str(path), 3)
    assert found.message.startswith("line 3 (byte offset 28) of the corpus cannot be read: it is not JSON")
    assert (seen.documents, seen.bad_lines, seen.refusals, seen.whole) == (4, 1, (), True)


@pytest.fixture
def table(tmp_path):
    """A table of five rows, the third without a text."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", "b", None, "d", "e"]}), tmp_path / "cut.parquet")
    return tmp_path / "cut.parquet"


def test_c38_a_row_without_a_text_is_found_or_counted(table):
    found, seen = refusal("parquet", table), look("parquet", table, skip=True)
    assert (found.rule, found.file, found.line) == ("D204", str(table), 3)
    assert found.message == 'row 3 of the corpus cannot be read: its column "text" is null'
    assert (seen.documents, seen.bad_lines, seen.refusals, seen.whole) == (4, 1, (), True)


@pytest.mark.parametrize("most_bytes", [1, 2, 3, 4])
def test_of_a_table_no_more_is_read_than_may_be(table, most_bytes):
    seen = look("parquet", table, skip=True, most_bytes=most_bytes)
    assert (seen.read_bytes, seen.documents, seen.whole) == (most_bytes, most_bytes, False)


@pytest.mark.parametrize("kind", PACKED)
def test_a_compressed_file_that_unpacks_without_end_is_only_begun(kind, tmp_path):
    path = tmp_path / f"x.jsonl.{kind}"
    path.write_bytes(PACKED[kind](bytes(20 << 20)))
    seen = look("jsonl", path)
    assert (seen.read_bytes, seen.documents, seen.whole, seen.refusals) == (1 << 20, 0, False, ())


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.ndjson", "x.json.gz"])
def test_c38_an_empty_file_of_lines_holds_0_documents(name, tmp_path):
    (tmp_path / name).touch()
    found = refusal("jsonl", tmp_path / name)
    assert (found.rule, found.message) == ("D205", "the corpus has 0 documents: there is no text in it")


def test_c38_an_empty_file_holds_0_documents(tmp_path):
    (tmp_path / "x.txt").touch()
    found = refusal("text", tmp_path / "x.txt")
    assert (found.rule, found.message) == ("D205", "the corpus has 0 documents: there is no text in it")


@pytest.mark.parametrize("most_bytes", range(1, 75))
def test_no_more_is_read_than_may_be_and_no_line_is_judged_by_half(cut, most_bytes):
    seen = look("jsonl", cut, skip=True, most_bytes=most_bytes)
    ends = [sum(map(len, LINES[: count + 1])) for count in range(5)]
    whole_lines = sum(end <= most_bytes for end in ends)
    assert seen.read_bytes == min(most_bytes, ends[-1])
    assert seen.documents + seen.bad_lines == whole_lines
    assert (seen.held_bytes, seen.whole) == (ends[-1], most_bytes >= ends[-1])


@pytest.mark.parametrize("most_bytes", [1, 2, 3, 4])
def test_a_text_that_is_cut_inside_a_character_is_still_text(tmp_path, most_bytes):
    (tmp_path / "x.txt").write_text("aäbc" * 100, "utf-8")
    seen = look("text", tmp_path / "x.txt", most_bytes=most_bytes)
    assert (seen.documents, seen.refusals, seen.whole) == (1, (), False)


def test_files_after_the_last_byte_that_may_be_read_are_not_opened(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("four", "utf-8")
    (tmp_path / "c.txt").symlink_to(tmp_path / "nowhere")
    seen = look("text", tmp_path, most_bytes=8)
    assert (seen.files, seen.documents, seen.bad_files, seen.read_bytes) == (3, 2, 0, 8)


def test_a_line_longer_than_may_be_read_is_no_empty_corpus(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "x" * 1000}), "utf-8")
    seen = look("jsonl", tmp_path / "x.jsonl", most_bytes=100)
    assert (seen.documents, seen.whole, seen.refusals) == (0, False, ())


def test_time_ends_a_look_too(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINES[0] * 100)
    seen = look("jsonl", tmp_path / "x.jsonl", most_s=0.0)
    assert (seen.documents, seen.whole) == (1, False)


def test_a_corpus_far_larger_than_memory_is_only_begun(tmp_path):
    path = tmp_path / "x.txt"
    with path.open("wb") as file:
        file.truncate(100 * 10**9)
    seen = look("text", path)
    assert (seen.read_bytes, seen.held_bytes, seen.whole) == (1 << 20, 100 * 10**9, False)


def test_lines_that_are_all_bad_are_told_once_with_the_way_out(tmp_path):
    (tmp_path / "notes.txt").write_text("one\ntwo\n", "utf-8")
    found = refusal("jsonl", tmp_path / "notes.txt")
    assert found.message == (
        "the corpus has 0 documents: none of its 2 records can be read; the first, line 1 (byte offset 0): "
        "it is not JSON (expecting value at column 1)"
    )
    assert found.fix.startswith('set training.dataset to "text"')


def test_one_line_of_text_is_no_json_line_that_was_cut(tmp_path):
    (tmp_path / "notes.txt").write_text("one\n", "utf-8")
    found = refusal("jsonl", tmp_path / "notes.txt")
    assert found.message == (
        "the corpus has 0 documents: its one record cannot be read; line 1 (byte offset 0): "
        "it is not JSON (expecting value at column 1)"
    )
    assert found.fix.startswith('set training.dataset to "text"')


def test_a_folder_with_files_of_the_other_kind_says_which_dataset_takes_them(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES[0])
    found = refusal("text", tmp_path)
    assert found.message == f"the corpus has 0 documents: {tmp_path} holds no file named *.txt, *.text, *.md or alike"
    assert found.fix.startswith('set training.dataset to "jsonl"')


def test_a_folder_without_a_file_that_is_read_says_how_they_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    found = refusal("jsonl", tmp_path)
    assert found.message.endswith("holds no file named *.jsonl, *.jsonl.gz, *.jsonl.zst or alike")
    assert found.fix.startswith('set training.dataset to "parquet"')


def test_bytes_that_are_no_text_are_named_as_what_they_are(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1\xff\xfe")
    assert (
        "the file (byte offset 4) of the corpus cannot be read: it is not UTF-8 there, as its name says: Parquet"
        in refusal("text", tmp_path / "a.parquet").message
    )


def test_the_first_bad_lines_are_shown_and_the_rest_is_counted(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINES[0] + LINES[2] * 12)
    found = look("jsonl", tmp_path / "x.jsonl").refusals
    assert [each.line for each in found] == [*range(2, 12), None]
    assert found[-1].message == "2 more records of the corpus cannot be read"


def test_a_path_where_nothing_is_cannot_be_looked_at(tmp_path):
    with pytest.raises(TitanError) as caught:
        look("text", tmp_path / "gone")
    assert caught.value.findings[0].rule == "D202"
