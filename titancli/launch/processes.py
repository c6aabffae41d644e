"""The processes of a run: started in a session of their own, and ended to the last one.

Knows a process only by having started it or by descending from one it started. Never ends
anything by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from titancli.launch.torchrun import Command

_KILL_AFTER_S = 3.0
_PR_SET_PDEATHSIG = 1


class Processes:
    """torchrun and all that descends from it."""

    def __init__(self, command: Command, environ: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._torchrun = subprocess.Popen(
                command.words,
                env=command.environment(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        root = psutil.Process(self._torchrun.pid)
        self._known: dict[int, psutil.Process] = {root.pid: root}
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
        """Remembers every descendant that lives now: one that loses its parent can be found no other way."""
        for parent in self._alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._known |= {child.pid: child for child in parent.children(recursive=True)}

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


def die_with_parent() -> Callable[[], None] | None:
    """For the child, before it becomes torchrun: ask Linux for a SIGTERM when the launcher dies in whatever way."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
