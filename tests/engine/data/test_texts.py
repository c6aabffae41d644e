"""The texts of a corpus beside its tokens: the place of a document, special tokens that are spelt out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from engine.data.reads import Named
from engine.data.texts import Place, Texts, look_through


def named(dataset: str, path: Path | None) -> Named:
    return Named(dataset=dataset, path=None if path is None else str(path), key="training.dataset_path")


def seen(dataset: str, path: Path | None, document: int, names: tuple[str, ...] = (), **more: int) -> Texts:
    return look_through(named(dataset, path), text_field="text", names=names, document=document, **more)


LINES = ["", '{"text": "one"}', '{"text": ""}', "{broken", '{"text": "three </s>"}', '{"text": "four </s><s>"}']


@pytest.mark.parametrize(("document", "line"), [(1, 2), (2, 5), (3, 6)])
def test_line_of_a_document_counts_those_that_hold_none(tmp_path: Path, document: int, line: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\ufeff" + "\n".join(LINES), "utf-8")
    assert seen("jsonl", file, document).place == Place(file=str(file), line=line)


def test_line_of_a_compressed_file_is_that_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(LINES))
    assert seen("jsonl", tmp_path, 3).place == Place(file=str(tmp_path / "b.jsonl.gz"), line=5)


def test_document_of_text_is_a_file(tmp_path: Path) -> None:
    for name, text in (("a.txt", "a"), ("b.txt", ""), ("c.txt", "c")):
        (tmp_path / name).write_text(text)
    found = seen("text", tmp_path, 2)
    assert (found.documents, found.place) == (2, Place(file=str(tmp_path / "c.txt")))


def test_row_of_parquet_counts_empty_ones(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", "", None, "b"]}), tmp_path / "a.parquet")
    assert seen("parquet", tmp_path, 2).place == Place(file=str(tmp_path / "a.parquet"), row=4)


def test_documents_that_spell_special_tokens_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    assert seen("jsonl", tmp_path, 1, ("<s>", "</s>", "<pad>")).spelt == {"<s>": 1, "</s>": 2, "<pad>": 0}


def test_only_so_many_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "x" * 80}) for _ in range(10)))
    found = seen("jsonl", tmp_path, 9, ("x",), most_bytes=300)
    assert (found.documents, found.spelt, found.place) == (3, {"x": 3}, None)


def test_every_document_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    told: list[None] = []
    look_through(
        named("jsonl", tmp_path), text_field="text", names=(), document=1, on_document=lambda: told.append(None)
    )
    assert len(told) == 3
