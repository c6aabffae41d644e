"""Work in processes: one that dies stops no other, and none stays behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fresh import fresh

from engine.dry.processes import each

DIED = "its process was ended by SIGKILL, as a system does that runs out of memory"


def squares(number: int) -> int:
    """What most of them do."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:
        os._exit(7)
    print("not an answer")
    return number * number


def some_squares() -> list[Any]:
    """Four of them, two at a time."""
    return [getattr(result, "how", result) for result in each(squares, 4, at_once=2)]


def test_one_that_dies_is_told_and_the_others_answer() -> None:
    assert fresh(some_squares) == [0, DIED, "its process exited with 7", 9]


def _sleep(_: int) -> None:
    time.sleep(600)


def interrupted() -> list[int]:
    """Processes left after Ctrl-C."""
    # A shell that starts tests in the background leaves them deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(KeyboardInterrupt):
        each(_sleep, 3, at_once=3)
    return [child.pid for child in psutil.Process().children(recursive=True)]


def test_interrupt_leaves_no_process() -> None:
    assert fresh(interrupted) == []


def _note_and_sleep(folder: Path, number: int) -> None:
    (folder / str(number)).write_text(str(os.getpid()))
    time.sleep(600)


class _Noting:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> None:
        _note_and_sleep(self.folder, number)


def killed(folder: Path) -> list[bool]:
    """Whether any of the processes of a process that is killed lives on."""
    parent = os.fork()
    if parent == 0:
        each(_Noting(folder), 2, at_once=2)
    _wait(lambda: len([path for path in folder.iterdir() if path.read_text()]) == 2)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    pids = [int(path.read_text()) for path in folder.iterdir()]
    _wait(lambda: not any(map(_lives, pids)))
    return [_lives(pid) for pid in pids]


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _wait(until: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not until() and time.monotonic() < end_s:
        time.sleep(0.02)


def test_they_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    assert fresh(killed, folder=tmp_path) == [False, False]
