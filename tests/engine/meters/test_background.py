"""Work in a thread of its own."""

from __future__ import annotations

import threading

from engine.meters.background import Background


def nothing() -> None:
    """Does nothing."""


def test_what_waits_is_done_once_and_in_order() -> None:
    go, done = threading.Event(), list[str]()

    def first() -> None:
        go.wait(10)
        done.append("first")

    def second() -> None:
        done.append("second")

    thread = Background("test", on_fault=lambda _: None)
    thread.ask(first)
    for _ in range(3):
        thread.ask(second)
    go.set()
    assert thread.finish(lambda: done.append("last"), timeout_s=10)
    assert done == ["first", "second", "last"]


def test_what_raises_is_told_and_ends_nothing() -> None:
    faults, done = list[Exception](), list[str]()
    thread = Background("test", on_fault=faults.append)
    thread.ask(lambda: [][0])
    assert thread.finish(lambda: done.append("last"), timeout_s=10)
    assert ([type(fault) for fault in faults], done) == ([IndexError], ["last"])


def test_what_hangs_is_left_behind_and_known_for_it() -> None:
    go, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go.wait(10)

    thread = Background("test", on_fault=lambda _: None)
    assert thread.busy_s() == 0.0
    thread.ask(hang)
    assert began.wait(10)
    assert thread.busy_s() > 0.0
    assert not thread.finish(nothing, timeout_s=0.01)
    go.set()
