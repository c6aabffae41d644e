"""Keys as they are pressed: a terminal that gives each at once and does not show it, and bytes become names.

Knows termios and what terminals send. Does not know what a key does (view).
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import termios
from typing import Any, Self

_NAMED = {
    b"A": "up",
    b"B": "down",
    b"C": "right",
    b"D": "left",
    b"H": "home",
    b"F": "end",
    b"P": "f1",
    b"1~": "home",
    b"4~": "end",
    b"7~": "home",
    b"8~": "end",
    b"5~": "pgup",
    b"6~": "pgdn",
    b"11~": "f1",
    b"15~": "f5",
    b"17~": "f6",
    b"21~": "f10",
    b"[A": "f1",
    b"[E": "f5",
}
_CONTROLS = {b"\r": "enter", b"\n": "enter", b"\x0c": "ctrl-l", b"\x12": "ctrl-r", b"\x06": "pgdn", b"\x02": "pgup"}
# `ESC [` or `ESC O`, parameters, and the letter that ends it; the console of Linux sends `ESC [ [ A` for F1.
_SEQUENCE = re.compile(rb"\x1b(?:\[(\[[A-E]|[0-9;?<>=]*[@-Z\\^_`a-z{|}~])|O([0-9;]*[@-z]))")
_BEGUN = re.compile(rb"\x1b(?:\[\[?[0-9;?<>=]*|O[0-9;]*)?\Z")
_MOST_BYTES = 4096
# An escape that nothing follows for so long is the key of that name.
ALONE_S = 0.05


def keys_in(data: bytes) -> tuple[list[str], bytes]:
    """The keys that bytes are, and the rest that may be the beginning of one. What is no key is left out."""
    keys: list[str] = []
    while data:
        if data[:1] != b"\x1b":
            keys += _key(data[:1])
            data = data[1:]
        elif sequence := _SEQUENCE.match(data):
            name = _NAMED.get(_without_modifiers(sequence[1] or sequence[2]))
            keys += [name] if name else []
            data = data[sequence.end() :]
        elif _BEGUN.match(data):
            break
        else:
            # Alt and a key, or escape and a key that was pressed after it.
            keys.append("esc")
            data = data[1:]
    return keys, data


def _key(byte: bytes) -> list[str]:
    """One byte; of letters beyond ASCII none is a key."""
    if byte in _CONTROLS:
        return [_CONTROLS[byte]]
    return [byte.decode()] if b" " <= byte <= b"~" else []


def _without_modifiers(code: bytes) -> bytes:
    """`1;5A` is an arrow with Ctrl held: as good as without."""
    return re.sub(rb"^1;\d+(?=[A-Z])|;\d+(?=~)", b"", code)


def _set(fd: int, when: int, modes: list[Any]) -> None:
    """Sets the modes of a terminal; termios.error where it is gone.

    A signal on the way (the process goes on after it was stopped in the background, the window gets another size) ends
    the call, and Python does not try again.
    """
    while True:
        try:
            termios.tcsetattr(fd, when, modes)
            return
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise


class Keyboard:
    """The terminal of stdin, which gives keys from entering to leaving, and is then as it was."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._rest = b""
        self._is_open = True

    @staticmethod
    def is_there() -> bool:
        """Whether stdin is a terminal."""
        try:
            return os.isatty(sys.stdin.fileno())
        except (OSError, ValueError):
            return False

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        quiet = termios.tcgetattr(self._fd)
        # Signals (Ctrl-C, Ctrl-Z) and output stay as they are.
        quiet[3] &= ~(termios.ICANON | termios.ECHO)
        quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
        _set(self._fd, termios.TCSADRAIN, quiet)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            try:
                # What was typed and not read is not meant for the shell.
                _set(self._fd, termios.TCSAFLUSH, self._before)
            except termios.error:
                return  # the terminal is gone

    def fileno(self) -> int:
        """What to wait for with select; ask `is_open` first."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether more keys may come."""
        return self._is_open

    def read(self) -> list[str]:
        """The keys that were pressed; call it when there is something to read."""
        try:
            data = os.read(self._fd, _MOST_BYTES)
        except OSError:
            data = b""
        if not data:
            self._is_open = False
            return []
        keys, self._rest = keys_in(self._rest + data)
        if self._rest and not select.select([self._fd], [], [], ALONE_S)[0]:
            keys += ["esc"] if self._rest == b"\x1b" else []
            self._rest = b""
        return keys
