"""What is shown while a corpus is prepared: a bar on a screen, a line now and then elsewhere.

Knows how far it is, in words. Does not know how a corpus is prepared (engine/data/prepare). An output that is gone
ends no preparation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from titancli import figures, report
from titancli.disk import decimal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine.data.prepare import State
    from engine.data.prepared import MadeFrom

_SAYS_EVERY_S = 15.0


@contextmanager
def shown(made: MadeFrom, folder: Path, stream: TextIO | None = None) -> Iterator[Callable[[State], None]]:
    """Within the block, what is called with the state of a preparation shows it on a stream (default: stdout)."""
    stream = stream or sys.stdout
    held = f"{figures.many(made.files, 'file')}, {decimal(made.bytes)}"
    what = f"{made.dataset} {made.path} ({held}) in {folder}"
    with _bar(what, stream) if report.is_screen(stream) else _lines(what, stream) as show:
        yield show


@contextmanager
def _lines(what: str, stream: TextIO) -> Iterator[Callable[[State], None]]:
    _quietly_say(f"preparing {what}", stream)
    pace, said_s = _Pace(), time.monotonic()

    def show(state: State) -> None:
        nonlocal said_s
        words = pace.words(state)
        if time.monotonic() - said_s > _SAYS_EVERY_S:
            said_s = time.monotonic()
            _quietly_say(f"  {words}", stream)

    yield show


@contextmanager
def _bar(what: str, stream: TextIO) -> Iterator[Callable[[State], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
    )
    pace = _Pace()
    # What is prepared may be longer than a line, and the bar is on one.
    _quietly_say(f"preparing {what}", stream)
    with Progress(*columns, console=report.console(stream), auto_refresh=False, expand=True) as progress:
        task = progress.add_task("preparing", total=1.0, words="")

        def show(state: State) -> None:
            try:
                progress.update(task, completed=_share(state), words=pace.words(state), refresh=True)
            except OSError:
                report.lose(stream)

        yield show


class _Pace:
    """How fast it goes, since its first part was begun."""

    def __init__(self) -> None:
        self._began: tuple[float, int, int] | None = None

    def words(self, state: State) -> str:
        """How far it is, how fast, and how long it will take."""
        if state.waits_for:
            return f"{state.waits_for} is preparing it: waiting"
        now_s = time.monotonic()
        if self._began is None:
            self._began = (now_s, state.tokens, state.read_bytes)
        began_s, tokens, read_bytes = self._began
        passed_s = now_s - began_s
        said = f"{100 * _share(state):.0f} % of {decimal(state.bytes)}, {figures.amount(state.tokens)} tokens"
        if passed_s < 1.0 or state.read_bytes == read_bytes:
            return said
        left_s = (state.bytes - state.read_bytes) / (state.read_bytes - read_bytes) * passed_s
        per_s = figures.rate((state.tokens - tokens) / passed_s)
        return f"{said}, {per_s} tokens/s, left {figures.duration(left_s)}"


def _share(state: State) -> float:
    return min(1.0, state.read_bytes / state.bytes) if state.bytes else 0.0


def _quietly_say(text: str, stream: TextIO) -> None:
    try:
        report.say(text, stream)
    except OSError:
        report.lose(stream)
