"""The processes of a run: started in a session of their own, and ended to the last one.

Knows a process only by having started it, by descending from one it started, or by a mark that such a one hands on.
Never ends anything by name. When the launcher dies in whatever way, torchrun dies with it (tied.py), and each worker
ends with torchrun (engine/parent.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from engine.parent import SHOWS_STACKS
from titancli.launch import tied
from titancli.launch.torchrun import Command

_KILL_AFTER_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36
_MARK = "TITAN_LAUNCHED_AS"


class Processes:
    """torchrun and all that descends from it."""

    def __init__(self, command: Command, environ: Mapping[str, str], log: Path) -> None:
        self._mark = uuid.uuid4().hex
        with log.open("ab") as output:
            self._torchrun = subprocess.Popen(
                tied_to_this(command.words),
                env=command.environment(environ) | {_MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        root = psutil.Process(self._torchrun.pid)
        self._known: dict[int, psutil.Process] = {root.pid: root}
        self._ranks: dict[int, int] = {}
        self._was_asked = False

    def exit_code(self) -> int | None:
        """torchrun's exit code; None while it runs."""
        return self._torchrun.poll()

    def signal(self, number: signal.Signals) -> None:
        """Hands a signal to torchrun, which hands it to its workers."""
        if self._torchrun.poll() is None:
            self._was_asked = True
            self._torchrun.send_signal(number)

    def killed_by(self) -> str | None:
        """The signal that ended torchrun, if it was sent by somebody else; None where it ended in another way."""
        code = self._torchrun.poll()
        if code is None or code >= 0 or self._was_asked:
            return None
        return signal.Signals(-code).name

    def look(self) -> None:
        """Remembers every descendant that lives now: one that loses its parent can be found only by its mark."""
        self._known |= {orphan.pid: orphan for orphan in self._orphans()}
        for parent in self._alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._known |= {child.pid: child for child in parent.children(recursive=True)}
        for process in self._alive():
            if process.pid not in self._ranks and (rank := _rank_of(process, self._torchrun.pid)) is not None:
                self._ranks[process.pid] = rank

    def lost_ranks(self) -> set[int]:
        """Ranks whose process is over, of those that were seen."""
        return {rank for pid, rank in self._ranks.items() if not _is_alive(self._known[pid])}

    def show_stacks(self) -> None:
        """Has the ranks that are left write their stacks to their logs; one that has not begun to work ends by it."""
        _send([process for process in self._alive() if process.pid in self._ranks], SHOWS_STACKS)

    def kill_ranks(self) -> None:
        """Kills the ranks that are left; torchrun lives on and tells how each of them ended."""
        _send([process for process in self._alive() if process.pid in self._ranks], signal.SIGKILL)

    def is_any_left(self) -> bool:
        """Whether one of them lives."""
        return bool(self._alive())

    def end(self, *, at_once: bool = False) -> None:
        """Ends all that is left: SIGTERM, and SIGKILL after three seconds (or right away)."""
        self.look()
        self._was_asked = self._was_asked or self._torchrun.poll() is None
        if not at_once:
            _send(self._alive(), signal.SIGTERM)
            deadline = time.monotonic() + _KILL_AFTER_S
            while self._alive() and time.monotonic() < deadline:
                self._torchrun.poll()
                time.sleep(0.05)
            self.look()
        _send(self._alive(), signal.SIGKILL)
        self._torchrun.wait()

    def _alive(self) -> list[psutil.Process]:
        return [process for process in self._known.values() if _is_alive(process)]

    def _orphans(self) -> list[psutil.Process]:
        """Processes of the run that this one has adopted; those that are over are taken off the system's list."""
        found = []
        for child in psutil.Process().children():
            if child.pid in self._known and child.pid != self._torchrun.pid and not _is_alive(child):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
            elif child.pid not in self._known and _mark_of(child) == self._mark:
                found.append(child)
        return found


def tied_to_this(words: Sequence[str]) -> tuple[str, ...]:
    """A command that is killed when this process, whose child it will be, dies in whatever way."""
    return (sys.executable, "-I", "-S", tied.__file__, str(os.getpid()), *words)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own, so that none can be lost."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _mark_of(process: psutil.Process) -> str | None:
    """The mark that a process was started with, or inherited."""
    try:
        mark: str | None = process.environ().get(_MARK)
    except (psutil.Error, OSError):
        return None
    return mark


def _rank_of(process: psutil.Process, torchrun: int) -> int | None:
    """The rank that a process was started as; None where torchrun is not its parent."""
    try:
        rank = process.environ().get("RANK", "") if process.ppid() == torchrun else ""
    except (psutil.Error, OSError):
        return None
    return int(rank) if rank.isdecimal() else None


def _is_alive(process: psutil.Process) -> bool:
    """Whether it is still that process, and more than an entry that nobody has collected."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
