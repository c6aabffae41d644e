"""Work that goes on in a thread: what became of it."""

from __future__ import annotations

import threading

import pytest

from engine.checkpoint.background import Background


def test_it_is_over_once_the_work_is_done_and_gives_what_was_made() -> None:
    may_end = threading.Event()
    work = Background("a name", lambda: may_end.wait(60) and threading.current_thread().name)
    assert not work.is_over
    assert not work.wait(0.01)
    may_end.set()
    assert (work.made(), work.is_over) == ("a name", True)


def test_its_failure_is_raised_by_whoever_asks_what_was_made() -> None:
    work = Background("a name", lambda: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        work.made()
    assert work.wait()


def test_work_at_once_is_done_here_before_anything_goes_on() -> None:
    work = Background("a name", threading.get_ident, at_once=True)
    assert (work.is_over, work.made()) == (True, threading.get_ident())
