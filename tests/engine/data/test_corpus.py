"""Documents come whole, in one order everywhere, and what cannot be read is named by its place."""

from __future__ import annotations

import gzip
import json
import os
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from engine.data import json_lines
from engine.data.corpus import TEXT_SUFFIXES, documents, stdlib_documents
from engine.data.records import Unreadable
from engine.errors import TitanError


def finding(dataset, path=None):
    with pytest.raises(TitanError) as caught:
        list(documents(dataset, path))
    (only,) = caught.value.findings
    assert caught.value.exit_code == 2
    return only


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_stdlib_is_the_source_of_the_running_python():
    found = list(documents("stdlib", None))
    source = Path(sysconfig.get_path("stdlib"), "json", "__init__.py").read_text("utf-8")
    assert source in found
    assert len(found) > 300


def test_stdlib_leaves_out_tests_packages_and_what_is_not_python(tmp_path):
    kept = {"b.py": b"b", "a/b.py": b"a/b", "a.py": b"a", "testing/x.py": b"testing"}
    left = ("test", "a/tests", "idlelib", "lib2to3", "site-packages/p", "dist-packages", "__pycache__")
    write(tmp_path, kept | {f"{folder}/x.py": b"no" for folder in left} | {"a.txt": b"no"})
    assert list(stdlib_documents(tmp_path)) == ["a", "a/b", "b", "testing"]


def test_stdlib_hands_on_what_it_cannot_read_as_tolerated(tmp_path):
    write(tmp_path, {"a.py": b"ok", "latin.py": b"# caf\xe9"})
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found = list(stdlib_documents(tmp_path))
    bad = [record for record in found if isinstance(record, Unreadable)]
    assert "ok" in found
    assert [(Path(record.file).name, record.byte_offset) for record in bad] == [("gone.py", None), ("latin.py", 5)]
    assert all(record.tolerated for record in bad)


def test_a_file_that_went_away_after_it_was_listed_is_handed_on(tmp_path):
    write(tmp_path, {"a.py": b"a", "b.py": b"b"})
    records = stdlib_documents(tmp_path)
    assert next(records) == "a"
    (tmp_path / "b.py").unlink()
    (gone,) = records
    assert (Path(gone.file).name, gone.reason, gone.tolerated) == ("b.py", "No such file or directory", True)


def test_stdlib_reads_a_zip_like_a_folder(tmp_path):
    files = {"b.py": b"b", "a/__init__.py": b"a", "a/test/x.py": b"no", "latin.py": b"\xe9", "c.pyc": b"no"}
    write(tmp_path / "lib", files)
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        for name, content in reversed(files.items()):
            archive.writestr(name, content)
    zipped = list(stdlib_documents(tmp_path / "lib.zip"))
    folder = list(stdlib_documents(tmp_path / "lib"))
    assert [record if isinstance(record, str) else record.reason for record in zipped] == [
        record if isinstance(record, str) else record.reason for record in folder
    ]
    assert zipped[:2] == ["a", "b"]


def test_stdlib_finds_the_zip_beside_a_folder_that_is_not_there(tmp_path, monkeypatch):
    name = tmp_path / f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("os.py", "import sys")
    monkeypatch.setattr(sys, "path", ["", str(name)])
    assert list(stdlib_documents(tmp_path / "gone")) == ["import sys"]


@pytest.mark.parametrize("root", ["gone", "empty", "not-a-zip"])
def test_stdlib_without_source_says_what_to_do(root, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [""])
    (tmp_path / "empty").mkdir()
    (tmp_path / "not-a-zip").write_bytes(b"x")
    with pytest.raises(TitanError) as caught:
        stdlib_documents(tmp_path / root)
    (only,) = caught.value.findings
    assert (only.rule, only.key) == ("D203", "training.dataset")
    assert str(tmp_path / root) in only.message


def test_text_takes_one_file_of_any_name(tmp_path):
    write(tmp_path, {"notes.odd": "ein Dokument: ä\r\n\u2028".encode()})
    assert list(documents("text", str(tmp_path / "notes.odd"))) == ["ein Dokument: ä\r\n\u2028"]


def test_text_takes_the_files_of_a_folder_by_suffix_in_the_order_of_their_paths(tmp_path):
    write(
        tmp_path,
        {
            "b.txt": b"2",
            "a/z.md": b"1",
            "a.py": b"0",
            "B.TXT": b"-1",
            "c.bin": b"no",
            ".hidden/x.txt": b"no",
            "c": b"no",
            "empty.txt": b"",
        },
    )
    os.mkfifo(tmp_path / "pipe.txt")
    assert list(documents("text", str(tmp_path))) == ["-1", "0", "1", "2", ""]
    assert {".txt", ".md", ".py"} <= set(TEXT_SUFFIXES)


def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path):
    write(tmp_path, {"a.txt": b"ok\xff"})
    (record,) = documents("text", str(tmp_path))
    assert (record.byte_offset, record.tolerated) == (2, False)
    assert "byte offset 2" in record.finding().message


def test_a_byte_order_mark_is_no_text(tmp_path):
    write(tmp_path, {"a.txt": b"\xef\xbb\xbfhello", "b.jsonl": b'\xef\xbb\xbf{"text": "hello"}\n'})
    assert list(documents("text", str(tmp_path / "a.txt"))) == ["hello"]
    assert list(documents("jsonl", str(tmp_path / "b.jsonl"))) == ["hello"]


def test_json_lines_are_one_document_each_whatever_ends_them(tmp_path):
    lines = b'{"text": "one\\n1", "id": 1}\r\n\n  {"text": "zwei \xe2\x80\xa8"}\n\t\n{"text": ""}\n{"text": "last"}'
    write(tmp_path, {"a.jsonl": lines})
    assert list(documents("jsonl", str(tmp_path / "a.jsonl"))) == ["one\n1", "zwei \u2028", "", "last"]


def test_json_lines_of_a_folder_come_file_after_file(tmp_path):
    write(tmp_path, {"b.jsonl": b'{"text": "2"}\n', "a/c.jsonl": b'{"text": "1"}', "d.txt": b"no", "e.json": b"no"})
    assert list(documents("jsonl", str(tmp_path))) == ["1", "2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "it is not JSON (unterminated string starting at column 10)"),
        (b"[1]", "it is not a JSON object"),
        (b'{"body": "x"}', 'it has no field "text"'),
        (b'{"text": null}', 'it has no field "text"'),
        (b'{"text": 3}', 'its field "text" is not a string'),
        (b'{"text": "\xff"}', "it is not UTF-8"),
        (b'{"text": "\\ud800"}', 'its field "text" holds half a surrogate pair'),
        (b"[" * 100_000, "it is JSON with a number or a nesting too large to read"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "it is JSON with a number or a nesting too large to read"),
        (b"NaN", "it is not a JSON object"),
    ],
    ids=["cut", "list", "other-field", "null", "number", "no-utf8", "surrogate", "nested", "long-number", "nan"],
)
def test_a_bad_line_is_handed_on_with_its_line_byte_and_reason(line, reason, tmp_path):
    good = json.dumps({"text": "gut: ü"}, ensure_ascii=False).encode() + b"\r\n"
    write(tmp_path, {"a.jsonl": good + b"\n" + line + b"\n" + good})
    before, bad, after = documents("jsonl", str(tmp_path / "a.jsonl"))
    assert before == after == "gut: ü"
    assert (bad.line, bad.byte_offset, bad.reason) == (3, len(good) + 1, reason)


def test_of_two_fields_of_one_name_the_last_counts_and_zero_bytes_are_text(tmp_path):
    write(tmp_path, {"a.jsonl": b'{"text": "first", "text": "last"}\n{"text": "\\u0000"}\n', "a.txt": b"\0"})
    assert list(documents("jsonl", str(tmp_path))) == ["last", "\0"]
    assert list(documents("text", str(tmp_path))) == ["\0"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_that_is_too_long_is_passed_over_and_never_held(name, tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "LONGEST_LINE_BYTES", 100)
    monkeypatch.setattr(json_lines, "_PASSED_AT_ONCE_BYTES", 7)
    whole, most, more = (json.dumps({"text": "x" * count}).encode() for count in (10, 88, 89))
    raw = b"\n".join([whole, most, more, more * 3, whole, more])
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    read = list(documents("jsonl", str(tmp_path)))
    assert [record if isinstance(record, str) else (record.line, record.byte_offset) for record in read] == [
        *("x" * 10, "x" * 88),
        *((3, raw.index(more)), (4, raw.index(more * 3)), "x" * 10, (6, len(raw) - len(more))),
    ]
    assert {record.reason for record in read if not isinstance(record, str)} == {"it is longer than 0 MiB"}


def test_hidden_files_are_no_files_of_a_folder(tmp_path):
    write(tmp_path, {"a.jsonl": b'{"text": "a"}', "._a.jsonl": b"\0\5\x16", ".b.txt": b"no", "a.txt": b"a"})
    assert list(documents("jsonl", str(tmp_path))) == ["a"]
    assert list(documents("text", str(tmp_path))) == ["a"]


def test_a_link_to_itself_is_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    (bad,) = documents("jsonl", str(tmp_path))
    assert (bad.line, bad.reason) == (None, "Too many levels of symbolic links")


def test_a_link_to_a_file_is_the_file_and_one_to_a_folder_is_not_entered(tmp_path):
    write(tmp_path / "there", {"a.jsonl": b'{"text": "a"}'})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "b.jsonl").symlink_to(tmp_path / "there" / "a.jsonl")
    (tmp_path / "here" / "c").symlink_to(tmp_path / "there")
    assert list(documents("jsonl", str(tmp_path / "here"))) == ["a"]


@pytest.mark.parametrize("dataset", ["text", "jsonl", "parquet"])
def test_a_pipe_is_no_corpus_and_is_never_waited_for(dataset, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert finding(dataset, str(tmp_path / "pipe")).message.endswith("pipe is no file and no folder")


def test_an_unknown_dataset_is_refused_with_the_nearest_name():
    only = finding("jsonlines")
    assert (only.rule, only.key, only.fix) == (
        "D201",
        "training.dataset",
        "set it to jsonl (there are stdlib, text, jsonl, parquet, huggingface or bins)",
    )
    assert 'no dataset "jsonlines"' in only.message
    assert finding("c4_test").fix == "set it to stdlib, text, jsonl, parquet, huggingface or bins"


@pytest.mark.parametrize("dataset", ["text", "jsonl"])
def test_a_corpus_without_a_path_is_refused(dataset):
    assert (finding(dataset).rule, finding(dataset).key) == ("D202", "training.dataset_path")


@pytest.mark.parametrize("dataset", ["text", "jsonl"])
def test_a_path_that_is_not_there_is_refused_in_the_spelling_of_the_user(dataset, tmp_path):
    path = str(tmp_path / "gone" / "x.jsonl")
    assert f"dataset_path = {path} is not there" in finding(dataset, path).message


def test_a_folder_that_cannot_be_listed_is_refused_not_passed_over(tmp_path, monkeypatch):
    write(tmp_path, {"a.txt": b"a", "locked/b.txt": b"b"})
    scandir = os.scandir

    def guarded(folder):
        if str(folder).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    assert "locked cannot be listed: Permission denied" in finding("text", str(tmp_path)).message


@pytest.mark.parametrize("path", ["~no-such-user-here/x.jsonl", "bad\0name"])
def test_a_path_that_cannot_be_one_is_refused(path):
    assert finding("jsonl", path).rule == "D202"
