"""Documents of a corpus, one after the other, in an order that is the same on every machine.

Knows where each kind of corpus keeps its documents: one file each (`stdlib`, `text`), or one
JSON line each (`jsonl`). Does not know tokens (tokenizer.py), nor what becomes of a record that
cannot be read: that is handed on as a value (tokenising.py decides).
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from engine.config import DATASETS
from engine.errors import Finding, TitanError

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cpp", ".hpp", ".cu"),
    *(".rs", ".go", ".java", ".js", ".ts", ".sh"),
)
JSON_LINES_SUFFIXES = (".jsonl",)
# What people keep texts in too, and titan does not read.
_FOREIGN = {".parquet": "Parquet", ".arrow": "Arrow", ".gz": "gzip", ".zst": "Zstandard", ".xz": "xz", ".zip": "zip"}
SUFFIXES = {"text": TEXT_SUFFIXES, "jsonl": JSON_LINES_SUFFIXES}
"""How the files of a folder are called that a dataset takes."""
# Installed packages are not the standard library; its tests hold text that is broken on purpose.
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file, or a line of one, that holds no document. `byte_offset` counts from 0 in the file.

    `line` counts from 1; None where the whole file is meant. `tolerated`: the corpus leaves such
    files out whatever the policy says.
    """

    file: str
    line: int | None
    byte_offset: int | None
    reason: str
    tolerated: bool = False

    @property
    def place(self) -> str:
        """Where in the file it is, in words."""
        what = "the file" if self.line is None else f"line {self.line}"
        return what if self.byte_offset is None else f"{what} (byte offset {self.byte_offset})"

    def finding(self) -> Finding:
        """What is wrong, for the policy that refuses it."""
        return Finding(
            rule="D204",
            severity="error",
            key="training.dataset_path",
            message=f"{self.place} of the corpus cannot be read: {self.reason}",
            fix='mend it, or leave out and count what cannot be read: data.on_bad_line = "skip"',
            file=self.file,
            line=self.line,
        )


Record: TypeAlias = str | Unreadable


@dataclass(slots=True)
class Meter:
    """Counts the bytes that are read from files where no more than `most_bytes` may be.

    What lies across the end is cut there: a text loses the rest, a line is not handed on.
    """

    most_bytes: int | None = None
    read_bytes: int = 0

    @property
    def left(self) -> int:
        """Bytes that may still be read; -1 is all, as files understand it."""
        return -1 if self.most_bytes is None else self.most_bytes - self.read_bytes


def documents(dataset: str, dataset_path: str | None) -> Iterator[Record]:
    """The records of `training.dataset`, streamed; TitanError D201 to D203 where there is no such corpus.

    Files of a folder come in the order of their relative paths, folders below included, hidden
    ones and links to folders not. `text` takes the suffixes in TEXT_SUFFIXES, `jsonl` *.jsonl;
    a single file may be named anything.
    """
    if dataset == "stdlib":
        return stdlib_documents(Path(sysconfig.get_path("stdlib")))
    if dataset in SUFFIXES:
        return file_documents(dataset, corpus_files(dataset, dataset_path), Meter())
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


def file_documents(dataset: str, files: list[Path], meter: Meter) -> Iterator[Record]:
    """The records of a dataset's files, streamed as far as the meter goes."""
    if dataset == "jsonl":
        return _json_lines_documents(files, meter)
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
        raise TitanError(_no_path(f"dataset_path = {dataset_path} is not there", "name a file or folder that exists"))
    suffixes = SUFFIXES[dataset]
    return _files_below(path, lambda name: name.lower().endswith(suffixes), lambda name: not name.startswith("."))


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


def _json_lines_documents(files: list[Path], meter: Meter) -> Iterator[Record]:
    for path in files:
        try:
            with path.open("rb") as file:
                byte_offset = 0
                for number, raw in enumerate(_lines(file, meter), start=1):
                    line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
                    if line:
                        text, reason = _text_of_line(line)
                        if text is None:
                            yield Unreadable(file=str(path), line=number, byte_offset=byte_offset, reason=reason)
                        else:
                            yield text
                    byte_offset += len(raw)
        except OSError as error:
            yield Unreadable(file=str(path), line=None, byte_offset=None, reason=error.strerror or str(error))


def _lines(file: BinaryIO, meter: Meter) -> Iterator[bytes]:
    """The lines of a file as far as the meter goes; one that goes on beyond it is left out."""
    if meter.most_bytes is None:
        # As it is in every run: nothing counts, and the file hands its lines on by itself.
        yield from file
    while meter.left and (raw := file.readline(meter.left)):
        meter.read_bytes += len(raw)
        if meter.left == 0 and not raw.endswith(b"\n") and file.read(1):
            return
        yield raw


def _text_of_line(line: bytes) -> tuple[str | None, str]:
    """The field `text` of one JSON line, or None and why there is none."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"it is not JSON ({error.msg.lower()} at column {error.colno})"
    except (ValueError, RecursionError):
        return None, "it is JSON with a number or a nesting too large to read"
    if not isinstance(record, dict):
        return None, "it is not a JSON object"
    text = record.get("text")
    if not isinstance(text, str):
        return None, 'it has no field "text"' if text is None else 'its field "text" is not a string'
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which is no character and which no tokenizer takes.
        return None, 'its field "text" holds half a surrogate pair'
    return text, ""
