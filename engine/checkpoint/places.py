"""Where checkpoints stand: a folder of this machine, or a URL of a store that fsspec reaches (`s3://`, `gs://`, ...).

Knows how to look, write, move and delete in either. Does not know what a checkpoint is (committed.py), and imports no
torch.

A local place is a pathlib.Path and is used as one; `file://` is another way to write one. Any other URL is a
universal_pathlib.UPath, which has a Path's methods, so that it goes by that type here. Three things are different
there:

- A file is put whole: an object store shows it once the PUT has ended, so the PUT of the manifest is the commit, as the
  rename is on a disk. On a store of plain files (`sftp://`, `local://`) a manifest that is cut short is none.
- Nothing is renamed: an object is copied by the store, then deleted.
- Its client raises what it likes; here all of that is an OSError.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from engine.errors import Finding, TitanError
from engine.extras import client_of

_FILE = "file://"
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"))
"""Schemes without folders: none is made there, for making one may make a bucket of a misspelt name."""


def is_url(written: str) -> bool:
    """Whether a path is written as a URL of another place than this machine's disks."""
    return "://" in written and not written.startswith(_FILE)


def is_remote(path: Path) -> bool:
    """Whether a path stands somewhere else than on this machine's disks."""
    return not isinstance(path, Path)


def place(written: str, *, key: str, within: Path | None = None) -> Path:
    """The path that is written under `key`, a relative one `within` a folder.

    TitanError D639 where it is a URL that this Python has no way to reach.
    """
    if not is_url(written):
        path = Path(os.path.expanduser(written.removeprefix(_FILE)))
        if written.startswith(_FILE) and not path.is_absolute():
            message = f"{written} names no file of this machine: after file:// comes a path from / on"
            raise TitanError(_error(key, message, f"write file:///{path}, or the path alone"))
        return path if within is None else within / path
    scheme = written.partition("://")[0]
    client = client_of(scheme)
    if client is None:
        message = f"{written} is in no place that fsspec knows: there is no {scheme}://"
        raise TitanError(_error(key, message, "write s3://bucket/path, gs://bucket/path, another URL, or a local path"))
    if lacks := client.lacks:
        message = f"{written} needs the package{'s' * (len(lacks) > 1)} {' and '.join(lacks)}, not installed here"
        raise TitanError(_error(key, message, client.pip))
    from upath import UPath

    # Another rank or another run may have written since a listing.
    options: dict[str, Any] = {"use_listings_cache": False} if scheme in _OBJECT_STORES else {}
    try:
        found = UPath(written, **options)
        assert found.fs is not None, "a URL has a file system"
    except Exception as failure:
        raise TitanError(_error(key, f"{written} cannot be reached: {_words(failure)}", "mend the URL")) from failure
    return cast(Path, found)


@contextmanager
def reached(path: Path) -> Iterator[None]:
    """Raises as OSError whatever the client of a remote place raises within the block."""
    try:
        yield
    except OSError:
        raise
    except Exception as failure:
        if not is_remote(path):
            raise
        raise OSError(f"{path}: {_words(failure)}") from failure


# ---- looking ------------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    """Names of what stands in a folder; FileNotFoundError where it is not there, OSError where it cannot be listed."""
    if not is_remote(folder):
        return os.listdir(folder)
    with reached(folder):
        if _fs(folder).isfile(_at(folder)):
            raise NotADirectoryError(f"{folder} is a file")
        return [name for name in map(_name, _fs(folder).ls(_at(folder), detail=False)) if name != _name(_at(folder))]


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of every file of a folder, by name, in one question; OSError where it cannot be listed."""
    if not is_remote(folder):
        return {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    with reached(folder):
        entries = _fs(folder).ls(_at(folder), detail=True)
        return {_name(entry["name"]): int(entry["size"]) for entry in entries if entry["type"] == "file"}


def read(path: Path) -> bytes:
    """All bytes of a file; OSError where it cannot be read."""
    if not is_remote(path):
        return path.read_bytes()
    with reached(path):
        return cast(bytes, _fs(path).cat_file(_at(path)))


def read_all(paths: Sequence[Path]) -> list[bytes | OSError]:
    """The bytes of several files, or why one cannot be read; remote ones are asked for at once."""
    if not paths or not is_remote(paths[0]):
        return [_read_or_why(path) for path in paths]
    with reached(paths[0]):
        found = _fs(paths[0]).cat([_at(path) for path in paths], on_error="return")
    # A lone path is answered without a table.
    table = found if isinstance(found, dict) else {_at(paths[0]): found}
    return [_bytes_or_why(path, table[_at(path)]) for path in paths]


def read_pieces(path: Path, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes [begin, end) of a file, for each piece; of a remote one all are asked for at once. OSError as `read`."""
    if not is_remote(path):
        with path.open("rb") as file:
            return [_piece(file, begin, end) for begin, end in pieces]
    with reached(path):
        begins, ends = [begin for begin, _ in pieces], [end for _, end in pieces]
        return cast(list[bytes], _fs(path).cat_ranges([_at(path)] * len(pieces), begins, ends, on_error="raise"))


def exists(path: Path) -> bool:
    """Whether anything has that name, a link to nothing too."""
    if not is_remote(path):
        return os.path.lexists(path)
    with reached(path):
        return bool(_fs(path).exists(_at(path)))


def is_folder(path: Path) -> bool:
    """Whether it is a folder, or a link to one; False where that cannot be told."""
    if not is_remote(path):
        return os.path.isdir(path)
    with contextlib.suppress(OSError), reached(path):
        return bool(_fs(path).isdir(_at(path)))
    return False


def is_link(path: Path) -> bool:
    """Whether it is a symbolic link, of which stores have none."""
    return not is_remote(path) and os.path.islink(path)


def changed_s(path: Path) -> float | None:
    """When a file was written, in Unix seconds; None where that cannot be told."""
    with contextlib.suppress(OSError), reached(path):
        return cast(float, _fs(path).modified(_at(path)).timestamp()) if is_remote(path) else path.stat().st_mtime
    return None


def free_bytes(folder: Path) -> int | None:
    """What a user may still write to the disk of a folder that is there; None where it does not tell, as a store."""
    if is_remote(folder):
        return None
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return None


# ---- changing -----------------------------------------------------------------------------------


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, where the place has folders."""
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)
    elif folder.protocol not in _OBJECT_STORES:  # type: ignore[attr-defined]
        with reached(folder):
            _fs(folder).makedirs(_at(folder), exist_ok=True)


def put(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all: it is on the disk before it has its name; in a store, in one PUT."""
    if is_remote(path):
        with reached(path):
            _fs(path).pipe_file(_at(path), data)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # What else the folder holds has its name on the disk before the mark can be.
    sync(path.parent)
    partial.rename(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Brings the names in a folder to the disk, where its file system can; a store has done so."""
    if is_remote(folder):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems refuse it for folders.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def unlink(path: Path) -> None:
    """Deletes a file; one that is not there is nothing."""
    if not is_remote(path):
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), reached(path):
        if _fs(path).exists(_at(path)):
            _fs(path).rm_file(_at(path))


def remove_tree(folder: Path) -> None:
    """Deletes a folder and all that it holds."""
    if not is_remote(folder):
        shutil.rmtree(folder)
        return
    with contextlib.suppress(FileNotFoundError), reached(folder):
        # An object store's folder has gone with its last object.
        if _fs(folder).exists(_at(folder)):
            _fs(folder).rm(_at(folder), recursive=True)


def copy_tree(folder: Path, to: Path) -> None:
    """Copies a remote folder within its store, which reads nothing to here where it can."""
    with reached(folder):
        _fs(folder).copy(_at(folder), _at(to), recursive=True)


# ---- fsspec -------------------------------------------------------------------------------------


def _fs(path: Path) -> Any:
    return path.fs  # type: ignore[attr-defined]


def _at(path: Path) -> str:
    """The path as its file system has it, without the scheme."""
    return cast(str, path.path)  # type: ignore[attr-defined]


def _name(at: str) -> str:
    return at.rstrip("/").rpartition("/")[2]


def _piece(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)


def _read_or_why(path: Path) -> bytes | OSError:
    try:
        return read(path)
    except OSError as failure:
        return failure


def _bytes_or_why(path: Path, found: Any) -> bytes | OSError:
    if isinstance(found, bytes | OSError):
        return found
    return OSError(f"{path}: {_words(found)}")


def _words(failure: BaseException) -> str:
    return str(failure) or type(failure).__name__


def _error(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D639", severity="error", key=key, message=message, fix=fix)
