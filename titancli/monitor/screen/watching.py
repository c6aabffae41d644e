"""The screen that people leave open: drawn anew every second, at every key and every change of size.

Knows when to draw, and that the terminal is as it was afterwards, however it ends. Does not know what is drawn
(drawing), what a key means (view) or where frames come from.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from engine.errors import EXIT_TERMINATED
from titancli import report
from titancli.monitor import REFRESH_S
from titancli.monitor.frame import Frame
from titancli.monitor.screen.drawing import Drawn, drawing
from titancli.monitor.screen.keys import Keyboard
from titancli.monitor.screen.panels_ink import Ink
from titancli.monitor.screen.view import View, after

if TYPE_CHECKING:
    from rich.live import Live

_OURS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Watched(Protocol):
    """Something that can be looked at again and again, until it is over."""

    is_over: bool

    def look(self) -> Frame:
        """What is to be seen now."""


def watch(watched: Watched) -> tuple[Frame, bool]:
    """Shows a run until it ends or somebody leaves: the last frame, and whether it was left.

    A run that is over from the first stays until somebody leaves it, where there are keys to do so.
    KeyboardInterrupt for Ctrl-C; SystemExit where the process is told to end, or the terminal is gone.
    """
    shown = watched.look()
    stays = watched.is_over and Keyboard.is_there()
    if watched.is_over and not stays:
        return shown, False
    with _signals() as told, _Screen() as screen:
        view: View | None = View()
        due_s = time.monotonic() + REFRESH_S
        while view is not None:
            drawn = screen.draw(shown, view)
            keys, signals = screen.wait(told, 60.0 if stays else due_s - time.monotonic())
            if signals & {signal.SIGTSTP, signal.SIGCONT}:
                screen.step_aside(stops=signal.SIGTSTP in signals)
            view = after(view, keys, drawn.extent)
            if view is None or stays or time.monotonic() < due_s:
                continue
            newest = watched.look()
            due_s = time.monotonic() + REFRESH_S
            if watched.is_over:
                return newest, False
            shown = shown if view.is_held else newest
    return shown, True


class _Screen:
    """The terminal while it is ours: its other page, no cursor, and a keyboard where there is one."""

    def __init__(self) -> None:
        self._console = report.console(sys.stdout)
        self._ink = Ink.of(sys.stdout)
        self._keyboard: Keyboard | None = None
        self._live: Live | None = None
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> _Screen:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def draw(self, frame: Frame, view: View) -> Drawn:
        """Draws it at the size that the terminal has now."""
        from rich.console import ConsoleDimensions

        columns, rows = _size()
        self._console.size = ConsoleDimensions(columns, rows)
        drawn = drawing(frame, columns, rows, view=view, ink=self._ink, has_keys=self._has_keys)
        assert self._live is not None, "it is drawn on only while it is open"
        try:
            self._live.update(drawn.picture, refresh=True)
        except OSError:
            # Nobody sees it any more: the terminal is gone, as the signal that says so is about to tell.
            report.lose(sys.stdout)
            raise SystemExit(EXIT_TERMINATED) from None
        return drawn

    def wait(self, told: int, seconds: float) -> tuple[list[str], set[int]]:
        """Waits for keys and signals, for so long at most; `told` is where signals are written to."""
        keyboard = self._keyboard if self._has_keys else None
        sources: list[int | Keyboard] = [told, *([keyboard] if keyboard is not None else [])]
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        signals = set(os.read(told, 1024)) if told in ready else set()
        return keyboard.read() if keyboard is not None and keyboard in ready else [], signals

    def step_aside(self, *, stops: bool) -> None:
        """Gives the terminal back, stops where that is wanted, and takes it again once the process goes on."""
        self._close()
        if stops:
            # As if nobody had asked to be told of it: the kernel stops the process here.
            before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, before)
        self._open()

    @property
    def _has_keys(self) -> bool:
        return self._keyboard is not None and self._keyboard.is_open

    def _open(self) -> None:
        from rich.live import Live

        with contextlib.ExitStack() as opened:
            if Keyboard.is_there():
                self._keyboard = opened.enter_context(Keyboard())
            live = Live(
                console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            opened.callback(_stop, live)
            live.start()
            self._live, self._opened = live, opened.pop_all()

    def _close(self) -> None:
        self._opened.close()


def _stop(live: Live) -> None:
    try:
        live.stop()
    except OSError:
        report.lose(sys.stdout)


def _size() -> tuple[int, int]:
    """Columns and rows of the terminal now; of one that does not know, 80 x 24."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns = rows = 0
    if columns > 0 and rows > 0:
        return columns, rows
    usual = shutil.get_terminal_size()
    return usual.columns, usual.lines


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Where the numbers of signals that matter can be read; those that end a process end it by an exception.

    One that the caller chose to ignore, as nohup does, stays ignored.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = {number: signal.getsignal(number) for number in (*_OURS, *_ENDING)}
    woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    handlers: dict[int, Callable[..., None]] = {**dict.fromkeys(_OURS, _notice), **dict.fromkeys(_ENDING, _end)}
    try:
        for number, handler in handlers.items():
            if before[signal.Signals(number)] is not signal.SIG_IGN or number == signal.SIGCONT:
                signal.signal(number, handler)
        yield read
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(woken)
        os.close(read)
        os.close(write)


def _notice(*_: object) -> None:
    """Python writes the number of the signal to the pipe; the loop reads it there."""


def _end(number: int, _: object) -> None:
    """Ends the process; the terminal is given back without a second signal in between, as of a key that is held.

    They are noticed and not ignored: of one that has come already and is ignored by then, Python writes a traceback.
    """
    for each in _ENDING:
        signal.signal(each, _notice)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_TERMINATED)
