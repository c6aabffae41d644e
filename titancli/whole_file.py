"""Files that titan writes for a person: in place whole or not at all, and never over what was there unasked.

Knows paths, links and what can go wrong with them. Does not know what is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from engine.errors import TitanError
from titancli import report


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a text went, and the file that keeps what was there before; None where nothing was."""

    path: str
    kept: str | None = None


def takes_a_stream(path: str) -> bool:
    """Whether a path names a pipe or a device: nothing is there to be lost, and nothing to be put beside it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_target(path: str, *, force: bool) -> None:
    """TitanError where `write_file` is going to refuse: U124 for a file that is there, U125 where none can be."""
    if not path.strip() or path == "-":
        raise _cannot(path or '""', "that is no name of a file", "give the path of a file")
    folder = os.path.dirname(os.path.realpath(path)) or "."
    if os.path.isdir(path) or path.endswith(os.sep):
        raise _cannot(path, "that is a folder", "give the path of a file in it")
    if takes_a_stream(path):
        return
    if os.path.lexists(path) and not force:
        dead = os.path.islink(path) and not os.path.exists(path)
        message = f"{path} is a link to {os.readlink(path)}, which is not there" if dead else f"{path} is there already"
        raise TitanError(report.error("U124", message, "give --force to replace it, or another name"))
    if not os.path.isdir(folder):
        if os.path.exists(folder):
            raise _cannot(path, f"{folder} is no folder", "choose another place")
        raise _cannot(path, f"there is no folder {folder}", f"make it (mkdir -p {folder}), or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _cannot(path, "permission denied", "choose a folder that you may write to")


def write_file(path: str, content: str | bytes, *, force: bool) -> Written:
    """Puts a text or a picture in place; TitanError U124 where a file is and `force` is not given, U125 where none can.

    With `force`, another content that was there is kept beside it as `FILE.old`, `FILE.old.2`, ... A link stays one.
    """
    check_target(path, force=force)
    raw = content.encode() if isinstance(content, str) else content
    try:
        if takes_a_stream(path):
            with open(path, "wb") as stream:
                stream.write(raw)
            return Written(path=path)
        with _beside(os.path.realpath(path), raw) as ready:
            return Written(path=path, kept=_placed(ready, path, raw, force=force))
    except FileExistsError:
        raise TitanError(report.error("U124", f"{path} is there already", "give --force to replace it")) from None
    except (OSError, ValueError) as trouble:
        reason = (getattr(trouble, "strerror", None) or str(trouble)).lower()
        raise _cannot(path, reason, "choose another place") from None


def _cannot(path: str, reason: str, fix: str) -> TitanError:
    return TitanError(report.error("U125", f"cannot write {path}: {reason}", fix))


@contextlib.contextmanager
def _beside(target: str, raw: bytes) -> Iterator[str]:
    """A complete file next to the target, with owner and rights of the one that is there; gone afterwards."""
    ready = os.path.join(os.path.dirname(target), f".titan-{os.getpid()}.tmp")
    try:
        with open(os.open(ready, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as file:
            if os.path.exists(target):
                old = os.stat(target)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                with contextlib.suppress(OSError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        yield ready
    finally:
        with contextlib.suppress(OSError):
            os.unlink(ready)


def _placed(ready: str, path: str, raw: bytes, *, force: bool) -> str | None:
    """Gives a complete file its name; returns the file that keeps the text that was there."""
    target = os.path.realpath(path)
    if not force:
        _link(ready, target)
        return None
    kept = None
    if os.path.exists(target) and not _holds(target, raw):
        kept = _kept(target)
    try:
        os.replace(ready, target)
    except BaseException:
        if kept is not None:
            os.unlink(kept)
        raise
    return kept if kept is None or os.path.islink(path) else path + kept.removeprefix(target)


def _holds(target: str, raw: bytes) -> bool:
    with open(target, "rb") as file:
        return file.read(len(raw) + 1) == raw


def _kept(target: str) -> str:
    """Another name for the file that is there: the first of FILE.old, FILE.old.2, ... that is free."""
    for number in count(1):
        kept = f"{target}.old" if number == 1 else f"{target}.old.{number}"
        try:
            _link(target, kept, keeps_source=True)
        except FileExistsError:
            continue
        return kept
    raise AssertionError("there is always one more number")


def _link(source: str, name: str, *, keeps_source: bool = False) -> None:
    """A second name for a file; FileExistsError where the name is taken, even by somebody in this very moment."""
    try:
        os.link(source, name)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no links: there the name is taken first, and filled at once.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            if keeps_source:
                shutil.copy2(source, name)
            else:
                os.replace(source, name)
        except BaseException:
            os.unlink(name)
            raise
