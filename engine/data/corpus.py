"""Documents of a corpus, one after the other, in an order that is the same on every machine.

Knows where each kind of corpus keeps its documents: one file each (`stdlib`, `text`), one line each (`jsonl`), one row
each (`parquet`, `huggingface`). Does not know tokens (tokenizer.py), nor what becomes of a record that
cannot be read: that is handed on as a value (tokenising.py decides).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.config import DATASETS
from engine.data.compressed import SUFFIXES as COMPRESSED
from engine.data.hub import hub_documents
from engine.data.json_lines import json_lines_documents
from engine.data.records import Meter, Record, Unreadable
from engine.data.tables import parquet_documents
from engine.errors import Finding, TitanError

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cpp", ".hpp", ".cu"),
    *(".rs", ".go", ".java", ".js", ".ts", ".sh"),
)
# A plain .json is one object more often than lines of them; packed, it is lines.
JSON_LINES_SUFFIXES = (
    *(f"{name}{packed}" for name in (".jsonl", ".ndjson") for packed in ("", *COMPRESSED)),
    *(f".json{packed}" for packed in COMPRESSED),
)
# What people keep texts in too, and a dataset of text does not read.
_FOREIGN = {".parquet": "Parquet", ".arrow": "Arrow", ".gz": "gzip", ".zst": "Zstandard", ".xz": "xz", ".zip": "zip"}
SUFFIXES = {"text": TEXT_SUFFIXES, "jsonl": JSON_LINES_SUFFIXES, "parquet": (".parquet",)}
"""How the files of a folder are called that a dataset takes."""
# Installed packages are not the standard library; its tests hold text that is broken on purpose.
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


def documents(dataset: str, dataset_path: str | None, *, text_field: str = "text") -> Iterator[Record]:
    """The records of `training.dataset`, streamed; TitanError D201 to D203 where there is no such corpus.

    Files of a folder come in the order of their relative paths, folders below included, hidden
    ones and links to folders not. `text` takes the suffixes in TEXT_SUFFIXES, `jsonl` those in
    JSON_LINES_SUFFIXES; a single file may be named anything. `text_field` is the field or column of a document's text.
    """
    if dataset == "stdlib":
        return stdlib_documents(Path(sysconfig.get_path("stdlib")))
    if dataset in SUFFIXES:
        return file_documents(dataset, corpus_files(dataset, dataset_path), Meter(), text_field=text_field)
    if dataset == "huggingface":
        return hub_documents(dataset_path, text_field=text_field)
    from difflib import get_close_matches

    near = get_close_matches(dataset, DATASETS, n=1)
    known = f"{', '.join(DATASETS[:-1])} or {DATASETS[-1]}"
    raise TitanError(
        Finding(
            rule="D201",
            severity="error",
            key="training.dataset",
            message=f'there is no dataset "{dataset}"',
            fix=f"set it to {near[0]} (there are {known})" if near else f"set it to {known}",
        )
    )


def file_documents(dataset: str, files: list[Path], meter: Meter, *, text_field: str = "text") -> Iterator[Record]:
    """The records of a dataset's files, streamed as far as the meter goes."""
    if dataset == "jsonl":
        return json_lines_documents(files, meter, text_field=text_field)
    if dataset == "parquet":
        return parquet_documents(files, meter, column=text_field)
    return _whole_files(files, tolerated=False, meter=meter)


def corpus_files(dataset: str, dataset_path: str | None) -> list[Path]:
    """The file at `dataset_path`, or the dataset's files of the folder there; TitanError D202 where nothing is."""
    if dataset_path is None:
        raise TitanError(_no_path(f'dataset "{dataset}" needs a file or folder', "set training.dataset_path"))
    # os.path asks without raising where a folder on the way may not be entered, or ~name is nobody.
    path = Path(os.path.expanduser(dataset_path))
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        what = "is no file and no folder" if os.path.exists(path) else "is not there"
        raise TitanError(_no_path(f"dataset_path = {dataset_path} {what}", "name a file or folder that exists"))
    suffixes = SUFFIXES[dataset]
    return _files_below(
        path,
        lambda name: name.lower().endswith(suffixes) and not name.startswith("."),
        lambda name: not name.startswith("."),
    )


def _no_path(message: str, fix: str) -> Finding:
    return Finding(rule="D202", severity="error", key="training.dataset_path", message=message, fix=fix)


def _files_below(root: Path, takes_file: Callable[[str], bool], enters: Callable[[str], bool]) -> list[Path]:
    """Files below a folder, sorted by relative path; links to nothing too, so that they are found unreadable.

    A folder that cannot be listed is refused, never passed over; pipes and devices are no files.
    """

    def refuse(error: OSError) -> None:
        message = f"the folder {error.filename} cannot be listed: {error.strerror}"
        raise TitanError(_no_path(message, "make it readable"))

    found: list[str] = []
    for folder, names_below, names in os.walk(root, onerror=refuse):
        names_below[:] = filter(enters, names_below)
        found += [os.path.join(folder, name) for name in names if takes_file(name)]
    files = (path for path in found if os.path.isfile(path) or not os.path.exists(path))
    return [Path(path) for path in sorted(files)]


def stdlib_documents(root: Path) -> Iterator[Record]:
    """Every .py file of the standard library at `root`, a folder or a zip (as embedded Pythons have it).

    Tests, idlelib, lib2to3 and installed packages are left out; files that cannot be read, or are
    not UTF-8, are handed on as tolerated. Raises TitanError D203 where there is no source at all.
    """
    from zipfile import is_zipfile

    files = _stdlib_in_folder(root) if root.is_dir() else []
    if files:
        return _whole_files(files, tolerated=True, meter=Meter())
    usual = [
        Path(entry) for entry in sys.path if Path(entry).name == f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    ]
    for archive in (root, *usual):
        if archive.is_file() and is_zipfile(archive):
            return _zipped_documents(archive)
    raise TitanError(
        Finding(
            rule="D203",
            severity="error",
            key="training.dataset",
            message=f"0 documents: this Python came without its standard library's source (looked in {root})",
            fix='use a Python with its .py files, or set training.dataset to "text" and name a dataset_path',
        )
    )


def _stdlib_in_folder(root: Path) -> list[Path]:
    return _files_below(root, lambda name: name.endswith(".py"), lambda name: name not in _NOT_STDLIB)


def _zipped_documents(archive: Path) -> Iterator[Record]:
    from zipfile import ZipFile

    with ZipFile(archive) as source:
        for name in sorted(source.namelist()):
            if name.endswith(".py") and not _NOT_STDLIB.intersection(name.split("/")[:-1]):
                yield _decoded(source.read(name), f"{archive}/{name}", tolerated=True)


def _whole_files(files: list[Path], *, tolerated: bool, meter: Meter) -> Iterator[Record]:
    for path in files:
        if meter.left == 0:
            return
        try:
            with path.open("rb") as file:
                raw = file.read(meter.left)
        except OSError as error:
            reason = error.strerror or str(error)
            yield Unreadable(file=str(path), line=None, byte_offset=None, reason=reason, tolerated=tolerated)
        else:
            meter.read_bytes += len(raw)
            yield _decoded(raw, str(path), tolerated=tolerated, cut=meter.left == 0)


def _decoded(raw: bytes, file: str, *, tolerated: bool, cut: bool = False) -> Record:
    """The text of a file as it stands, without a byte order mark; the last character may be `cut`."""
    try:
        return getincrementaldecoder("utf-8")().decode(raw, final=not cut).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        foreign = _FOREIGN.get(Path(file).suffix.lower())
        reason = "it is not UTF-8 there" + (f", as its name says: {foreign}" if foreign else "")
        return Unreadable(file=file, line=None, byte_offset=error.start, reason=reason, tolerated=tolerated)
