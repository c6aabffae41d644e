"""A command in a terminal that keeps its screen: what stands on it, what was ever written, and its modes."""

from __future__ import annotations

import os
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte

_LONGEST_S = 30.0


class Terminal:
    """A running command; `written` is all that it sent."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        rows: int = 24,
        columns: int = 80,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        taken = ("TITAN_", "COLUMNS", "LINES", "NO_COLOR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
        self.written = ""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self.child = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=str(folder),
            env=kept | {"TERM": "xterm-256color"} | dict(environ or {}),
            dimensions=(rows, columns),
            encoding="utf-8",
            timeout=_LONGEST_S,
        )
        self.child.delaybeforesend = None

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, each line without the space at its end."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def modes(self) -> list[Any]:
        """How the terminal treats input and output."""
        return termios.tcgetattr(self.child.child_fd)

    def sees(self, wanted: str, *, without: str = "") -> str:
        """Waits until a text stands on the screen, and another does not; returns the whole screen."""
        deadline = time.monotonic() + _LONGEST_S
        while not (wanted in self.text and (not without or without not in self.text)):
            assert time.monotonic() < deadline, f"never on the screen: {wanted!r} without {without!r}\n{self.text}"
            if not self.read():
                break
        assert wanted in self.text, f"it ended without {wanted!r}\n{self.text}\n{self.written[-3000:]}"
        return self.text

    def press(self, *keys: str) -> None:
        """Sends keys."""
        for key in keys:
            self.child.send(key)

    def resize(self, rows: int, columns: int) -> None:
        """Changes its size, as a window does."""
        self._screen.resize(rows, columns)
        self._screen.reset()
        self.child.setwinsize(rows, columns)

    def read(self) -> bool:
        """Takes in what was written since; False where the command has ended."""
        try:
            told = self.child.read_nonblocking(1 << 16, timeout=0.1)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.written += told
        self._stream.feed(told)
        return True

    def end(self) -> int | None:
        """Waits for its end: the exit code."""
        while self.read():
            pass
        self.child.close()
        return self.child.exitstatus
