"""A command in a pseudo-terminal of fixed size and environment, and what stands on its screen in the end.

Knows terminals. Does not know which commands are shown. Needs pyte where keys are pressed: it comes with `titan[test]`.
"""

from __future__ import annotations

import codecs
import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

_ROWS = 150
# Where nobody keeps rates that were measured.
_HOME = "/home/you"
_LONGEST_SECONDS = 60.0
# The last that the wizard writes of a question: from here on it listens.
_LISTENS = "quit: Ctrl-C"
_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}


def played(words: Sequence[str], *, folder: Path, columns: int, keys: Sequence[str] = ()) -> Text:
    """What `titan` and these words leave on a screen; with keys, what is there once all of them were pressed."""
    from rich.text import Text

    told = written(words, folder=folder, columns=columns, keys=keys)
    return _on_a_screen(told, columns) if keys else Text.from_ansi(told.replace("\r\n", "\n").strip("\n"))


def written(
    words: Sequence[str],
    *,
    folder: Path,
    columns: int,
    keys: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """All that `titan` and these words send to a terminal; `environ` goes over what is always the same."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    fixed = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": _HOME, "CUDA_VISIBLE_DEVICES": ""}
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (_ROWS, columns))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "titancli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**kept, **fixed, **environ},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            return "".join(_read(ours, keys))
        finally:
            process.kill()
            os.close(ours)


def _read(terminal: int, keys: Sequence[str]) -> Iterator[str]:
    """What is written, as it comes; at each question a key is pressed, and at the one after the last it ends."""
    decoder, waiting = codecs.getincrementaldecoder("utf-8")(), list(keys)
    recent, deadline = "", time.monotonic() + _LONGEST_SECONDS
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            piece = decoder.decode(os.read(terminal, 65_536))
        except OSError:  # the other end is closed: the command has ended
            return
        if not piece:
            return
        yield piece
        recent += piece
        if keys and _LISTENS in recent:
            if not waiting:
                return
            recent = ""
            os.write(terminal, waiting.pop(0).encode())
    raise AssertionError(f"no end within {_LONGEST_SECONDS:.0f} s")


def _on_a_screen(written: str, columns: int) -> Text:
    """What a terminal shows of it, where the cursor was moved back and lines were drawn over."""
    import pyte
    from rich.text import Text

    screen = pyte.Screen(columns, _ROWS)
    pyte.Stream(screen).feed(written)
    lines = [_line(screen.buffer[row], columns) for row in range(_ROWS)]
    while lines and not lines[-1].plain:
        lines.pop()
    while lines and not lines[0].plain:
        lines.pop(0)
    return Text("\n").join(lines)


def _line(cells: Any, columns: int) -> Text:
    from rich.style import Style
    from rich.text import Text

    line = Text()
    for column in range(columns):
        cell = cells[column]
        colour = None if cell.fg == "default" else _COLOURS.get(cell.fg, cell.fg)
        line.append(cell.data, Style(color=colour, bold=cell.bold or None, reverse=cell.reverse or None))
    line.rstrip()
    return line
