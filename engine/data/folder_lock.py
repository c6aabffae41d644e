"""One process at a time in a folder that several machines may see.

Knows the lock that the system takes back when a process dies in whatever way. Does not know what is done in the folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK_EVERY_S = 0.5
LOCK = ".lock"


@contextmanager
def alone_with(folder: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Keeps others out within the block; while another is in, waits and calls `waits` with who that is.

    Where a file system does not lock, nobody is kept out. OSError where the folder cannot be written.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _locked(handle):
            waits(os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process")
            time.sleep(_LOOK_EVERY_S)
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as trouble:
        return trouble.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
