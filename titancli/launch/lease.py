"""Whose a run folder is: one launcher's at a time, whichever machines see it.

Knows the lock that the system takes back when a process dies in whatever way, and how its holder shows that it lives.
Does not know how others judge that (monitor/signs), nor what is written into the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import TitanError
from titancli import report
from titancli.monitor.follow import LAUNCHER_FILE, Launcher
from titancli.monitor.signs import LEASE_FILE, TOUCHED_EVERY_S

_LEFT_FOR_S = 12.0


class Lease:
    """The right to a run folder, held until it is closed or this process ends."""

    def __init__(self, handle: int) -> None:
        """Goes on with a lease that this process was handed by the one that took it."""
        self.handle = handle

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Shows within the block that its holder lives."""
        over = threading.Event()

        def touch() -> None:
            while not over.wait(TOUCHED_EVERY_S):
                with contextlib.suppress(OSError):
                    os.utime(self.handle)

        thread = threading.Thread(target=touch, daemon=True, name="keep the lease")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        """Gives it back."""
        os.close(self.handle)


def lock(run: Path) -> Lease:
    """Keeps others out of a run folder; TitanError R104 where another holds it, R107 where it cannot be written."""
    try:
        handle = os.open(run / LEASE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as trouble:
        raise cannot_write(run, trouble) from trouble
    try:
        _lock(handle, run)
        os.utime(handle)
    except BaseException:
        os.close(handle)
        raise
    return Lease(handle)


def take(run: Path, seen: Launcher | None) -> Lease:
    """Makes a run folder this process's own; `seen` is the launcher that was found dead in it.

    TitanError R104 where another has taken it since, R107 where it cannot be written.
    """
    lease = lock(run)
    try:
        # Not every file system locks; a name can be taken away by one process only on all of them.
        _replace(run, seen)
    except OSError as trouble:
        lease.close()
        raise cannot_write(run, trouble) from trouble
    except BaseException:
        lease.close()
        raise
    return lease


def processes_of(run: Path) -> list[int]:
    """Processes of this machine that train into a run folder, or start others that do."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        is_ours = words[-3:-1] == ["-m", "engine"] and _is_same(Path(words[-1]), run)
        if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.info["pid"])
    return found


def wait_for_the_last(run: Path, *, patience_s: float = _LEFT_FOR_S) -> None:
    """Waits for processes that a dead launcher has left behind; TitanError R121 where they do not end."""
    deadline_s = time.monotonic() + patience_s
    told = False
    while left := processes_of(run):
        pids = " ".join(map(str, left))
        if time.monotonic() > deadline_s:
            message = f"processes of the last launch of {run} have not ended: {pids}"
            raise TitanError(report.error("R121", message, f"end them with kill -9 {pids}, and launch again"))
        if not told:
            report.say(f"waiting for the processes of the last launch to end: {pids}")
            told = True
        time.sleep(0.2)


def _lock(handle: int, run: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as trouble:
        if trouble.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise just_taken(run) from None


def _replace(run: Path, seen: Launcher | None) -> None:
    """Puts this process's launcher.json in the place of the dead one's."""
    aside = run / f".{LAUNCHER_FILE}.{uuid.uuid4().hex[:8]}"
    try:
        (run / LAUNCHER_FILE).rename(aside)
    except FileNotFoundError:
        if seen is not None:
            raise just_taken(run) from None
        Launcher.this_process().write(run)
        return
    try:
        if Launcher.read_file(aside) not in (seen, Launcher.this_process()):
            aside.rename(run / LAUNCHER_FILE)
            raise just_taken(run)
        Launcher.this_process().write(run)
    finally:
        aside.unlink(missing_ok=True)


def just_taken(run: Path) -> TitanError:
    """What is said where another launch was faster."""
    fix = f"watch it with titan monitor {run}, or give another --name"
    return TitanError(report.error("R104", f"another launch has just taken {run}", fix, key="job.name"))


def cannot_write(run: Path, trouble: OSError) -> TitanError:
    """What the disk does not take."""
    message = f"cannot write the run folder {run}: {(trouble.strerror or str(trouble)).lower()}"
    fix = "make room or set job.dump_folder to a folder that can be written"
    return TitanError(report.error("R107", message, fix, key="job.dump_folder"))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
