"""Compressed lines, tables and datasets of the library are read as plain lines are."""

from __future__ import annotations

import gzip
import json

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.corpus import documents
from engine.data.hub import HubName, hub_documents, hub_name
from engine.data.parts import part_records, parts
from engine.data.records import Unreadable
from engine.data.refused import nothing_to_read
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


def test_a_file_packed_with_a_window_of_256_mib_is_read(tmp_path):
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(LINES) + packer.flush())
    assert list(documents("jsonl", str(tmp_path))) == TEXTS


def test_a_file_of_no_bytes_is_no_archive_that_breaks_off(tmp_path):
    (tmp_path / "a.jsonl.gz").touch()
    assert list(documents("jsonl", str(tmp_path))) == []


@pytest.mark.parametrize("kind", ["jsonl", "json.gz", "json.zst", "ndjson", "ndjson.gz", "JSONL.GZ"])
def test_lines_go_by_several_names(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(PACKED.get(path.suffix.lower()[1:], bytes)(LINES))
    (tmp_path / "dataset_info.json").write_text("{}")
    assert list(documents("jsonl", str(tmp_path))) == TEXTS


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
        values = texts if kind == "as it is" else pyarrow.array(texts, pyarrow.string())
        parquet.write_table(pyarrow.table({column: values, "number": range(len(texts))}), path)
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


def test_a_row_that_is_not_utf8_is_told_and_the_next_are_read(table):
    import pyarrow

    raw = pyarrow.array([b"a", b"\xff", None, b"b"]).view(pyarrow.string())
    for path in (table(raw), table(raw.dictionary_encode(), kind="as it is", name="b.parquet")):
        one, bad, null, other = documents("parquet", str(path))
        assert (one, other, null.line) == ("a", "b", 3)
        assert (bad.line, bad.reason) == (2, 'its column "text" is not UTF-8')
        assert bad.finding().message.startswith("row 2 of the corpus cannot be read: ")


@pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary"])
def test_all_kinds_of_text_columns_are_read(kind, table):
    import pyarrow

    array = pyarrow.array(TEXTS)
    array = array.dictionary_encode() if kind == "dictionary" else array.cast(getattr(pyarrow, kind)())
    assert list(documents("parquet", str(table(array, kind="as it is")))) == TEXTS


def test_a_table_with_two_columns_of_the_name_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    both = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(both, tmp_path / "a.parquet")
    with pytest.raises(TitanError, match=r'D208.*has 2 columns "text"'):
        list(documents("parquet", str(tmp_path)))


def test_columns_beside_the_text_do_not_matter(tmp_path):
    import pyarrow
    from pyarrow import parquet

    mixed = pyarrow.table({"text.x": [1, 2], "of": [{"text": 3}] * 2, "text": ["a", "b"]})
    parquet.write_table(mixed, tmp_path / "a.parquet")
    assert list(documents("parquet", str(tmp_path))) == ["a", "b"]


def test_a_large_row_group_is_read_in_pieces(tmp_path):
    import pyarrow
    from pyarrow import parquet

    texts = [str(number) * 1000 for number in range(10_000, 15_000)]
    parquet.write_table(
        pyarrow.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False, compression="none"
    )
    del texts
    before = pyarrow.total_allocated_bytes()
    held = [pyarrow.total_allocated_bytes() - before for _ in documents("parquet", str(tmp_path))]
    # Of 25 MB of text in one group.
    assert (len(held), max(held) < 15 << 20) == (5_000, True), max(held)


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
        ("a::train[:10%]", HubName(place="a", configuration=None, split="train[:10%]")),
    ],
)
def test_a_dataset_is_named_with_its_configuration_and_split(written, name):
    assert hub_name(written) == name


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A dataset on this machine, in the library's own form and as lines."""
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    datasets.disable_progress_bars()
    own = datasets.Dataset.from_dict({"text": TEXTS, "body": TEXTS})
    own.save_to_disk(folder / "own")
    datasets.DatasetDict(train=own, rest=own.select([1])).save_to_disk(folder / "splits")
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


@pytest.mark.parametrize(("split", "texts"), [("", TEXTS), ("::train", TEXTS), ("::rest", TEXTS[1:2])])
def test_a_split_of_a_saved_dataset_is_read(split, texts, saved):
    assert list(hub_documents(str(saved / "splits") + split, text_field="text")) == texts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("splits::test", 'has no split "test"; it has train, rest'),
        ("own::test", 'has no split "test"; it has train'),
        ("own:en", "names a configuration, and a dataset that was saved has none"),
        ("files::test", "cannot be opened as a dataset: Unknown split"),
        ("none", "cannot be opened as a dataset: Couldn't find"),
        ("", "is no name of a dataset"),
    ],
)
def test_what_a_dataset_of_this_machine_has_not_is_refused(name, message, saved):
    with pytest.raises(TitanError, match="D209") as caught:
        hub_documents(name and str(saved / name), text_field="text")
    assert message in caught.value.findings[0].message


def test_c38_a_row_of_a_dataset_that_is_no_text_is_told_with_its_number(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": null}\n{"text": "c"}\n')
    for streaming in (False, True):
        one, bad, other = hub_documents(str(tmp_path), text_field="text", streaming=streaming)
        assert (one, other, bad.line, bad.reason) == ("a", "c", 2, 'its column "text" is null')


@pytest.mark.parametrize("streaming", [False, True])
def test_c38_a_dataset_that_breaks_off_is_refused_and_never_read_as_shorter(streaming, tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"text": "cut')
    caplog.set_level("CRITICAL")
    with pytest.raises(TitanError, match=r"D209.*JSON parse error"):
        list(hub_documents(str(tmp_path), text_field="text", streaming=streaming))


@settings(max_examples=10)
@given(target_bytes=st.integers(1, 300))
def test_rows_of_a_dataset_in_parts_are_the_dataset(target_bytes, saved):
    path = str(saved / "own")
    cut = parts("huggingface", path, target_bytes=target_bytes)
    assert [record for part in cut for record in part_records(part)] == TEXTS
    assert len(cut) > 1 or target_bytes > 100


def test_a_dataset_without_text_has_no_documents_and_no_other_kind(saved):
    found = nothing_to_read("huggingface", str(saved / "files"))
    assert (found.message, found.fix) == (
        "the corpus has 0 documents: there is no text in it",
        "name files that hold text",
    )


def test_a_dataset_that_is_not_there_is_refused(saved, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TitanError, match=r"D209.*cannot be opened"):
        hub_documents(str(saved / "files") + ":x:nosuchsplit", text_field="text")
