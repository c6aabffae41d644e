"""Compressed lines, tables and datasets of the library are read as plain lines are."""

from __future__ import annotations

import gzip
import json

import pytest
from backports import zstd

from engine.data.corpus import documents
from engine.data.hub import HubName, hub_documents, hub_name
from engine.data.records import Unreadable
from engine.errors import TitanError

TEXTS = ["one", "two \u00e4\n", "three", "four " * 50]
LINES = "".join(json.dumps({"text": text, "body": text.upper()}) + "\n" for text in TEXTS).encode()
PACKED = {"gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_lines_are_read_as_they_were(kind, tmp_path):
    (tmp_path / f"a.jsonl.{kind}").write_bytes(PACKED[kind](LINES))
    assert list(documents("jsonl", str(tmp_path))) == TEXTS


@pytest.mark.parametrize("kind", PACKED)
def test_all_members_of_a_compressed_file_are_read(kind, tmp_path):
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(PACKED[kind](LINES) + PACKED[kind](LINES))
    assert list(documents("jsonl", str(path))) == TEXTS * 2


@pytest.mark.parametrize("kind", PACKED)
def test_a_bad_line_of_a_compressed_file_has_its_place_in_the_text(kind, tmp_path):
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(PACKED[kind](LINES[:40] + b"\n{cut\n" + LINES))
    bad = [record for record in documents("jsonl", str(path)) if isinstance(record, Unreadable)]
    assert [(record.line, record.byte_offset) for record in bad] == [(2, 31), (3, 41)]


@pytest.mark.parametrize("kind", PACKED)
def test_a_compressed_file_that_breaks_off_is_told_with_the_line_reached(kind, tmp_path):
    path = tmp_path / f"a.jsonl.{kind}"
    whole = PACKED[kind](LINES) + PACKED[kind](LINES)
    path.write_bytes(whole[:-12])
    *read, bad = documents("jsonl", str(path))
    assert read == (TEXTS * 2)[: len(read)]
    assert (bad.line, bad.file) == (None, str(path))
    assert bad.reason.startswith("it breaks off")
    assert bad.reason.endswith("lines")


@pytest.mark.parametrize("kind", PACKED)
def test_a_file_that_is_not_what_its_name_says_is_told(kind, tmp_path):
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(LINES)
    [bad] = documents("jsonl", str(path))
    assert bad.reason.startswith("it is no whole " + {"gz": "gzip", "zst": "Zstandard"}[kind])


def test_the_field_of_the_text_can_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    assert list(documents("jsonl", str(tmp_path), text_field="body")) == [text.upper() for text in TEXTS]
    bad = next(documents("jsonl", str(tmp_path), text_field="gone"))
    assert bad.reason == 'it has no field "gone"'


@pytest.fixture
def table(tmp_path):
    """Writes a table of texts; gives its path."""
    import pyarrow
    from pyarrow import parquet

    def write(texts, *, column="text", kind=None, name="a.parquet"):
        path = tmp_path / name
        kind = kind or pyarrow.string()
        parquet.write_table(pyarrow.table({column: pyarrow.array(texts, kind), "number": range(len(texts))}), path)
        return path

    return write


def test_rows_of_a_table_are_documents(table, tmp_path):
    table(TEXTS)
    table(["five"], name="b.parquet")
    assert list(documents("parquet", str(tmp_path))) == [*TEXTS, "five"]


def test_a_row_that_is_null_is_told_with_its_number(table):
    path = table(["a", None, "b"])
    one, bad, other = documents("parquet", str(path))
    assert (one, other) == ("a", "b")
    assert (bad.line, bad.reason) == (2, 'its column "text" is null')


def test_a_table_without_the_column_is_refused_with_those_it_has(table):
    path = table(TEXTS, column="content")
    with pytest.raises(TitanError, match=r'D208.*has no column "text"; it has content, number'):
        list(documents("parquet", str(path)))
    assert list(documents("parquet", str(path), text_field="content")) == TEXTS


def test_a_column_that_is_no_text_is_refused(table):
    with pytest.raises(TitanError, match=r"D208.*is of int64, not of text"):
        list(documents("parquet", str(table(TEXTS)), text_field="number"))


def test_a_table_that_is_cut_short_is_a_file_that_cannot_be_read(table):
    path = table(TEXTS)
    path.write_bytes(path.read_bytes()[:-20])
    [bad] = documents("parquet", str(path))
    assert (bad.file, bad.line) == (str(path), None)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a/b", HubName(place="a/b", configuration=None, split="train")),
        ("a/b:en", HubName(place="a/b", configuration="en", split="train")),
        ("a/b:en:test", HubName(place="a/b", configuration="en", split="test")),
        ("a::test", HubName(place="a", configuration=None, split="test")),
    ],
)
def test_a_dataset_is_named_with_its_configuration_and_split(written, name):
    assert hub_name(written) == name


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A dataset on this machine, in the library's own form and as lines."""
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    datasets.Dataset.from_dict({"text": TEXTS, "body": TEXTS}).save_to_disk(folder / "own")
    (folder / "files").mkdir()
    (folder / "files" / "train.jsonl").write_bytes(LINES)
    return folder


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("form", ["own", "files"])
def test_a_dataset_of_this_machine_is_read_in_its_order(form, streaming, saved):
    assert list(hub_documents(str(saved / form), text_field="text", streaming=streaming)) == TEXTS


def test_a_dataset_without_the_column_is_refused_with_those_it_has(saved):
    with pytest.raises(TitanError, match=r'D209.*has no column "gone"; it has text, body'):
        hub_documents(str(saved / "own"), text_field="gone")


def test_a_dataset_that_is_not_there_is_refused(saved, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TitanError, match=r"D209.*cannot be opened"):
        hub_documents(str(saved / "files") + ":x:nosuchsplit", text_field="text")
