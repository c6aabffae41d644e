"""Keys, as terminals send them."""

from __future__ import annotations

import errno
import os
import pty
import sys
import termios
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titancli.monitor.screen.keys import Keyboard, keys_in


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"nnp?", ["n", "n", "p", "?"]),
        (b" ", [" "]),
        (b"\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~", ["pgup", "pgdn"]),
        (b"\x06\x02", ["pgdn", "pgup"]),
        (b"\x1b[H\x1b[F\x1bOH\x1bOF\x1b[1~\x1b[4~\x1b[7~\x1b[8~", ["home", "end"] * 4),
        (b"\x1bOP\x1b[11~\x1b[[A", ["f1"] * 3),
        (b"\x1b[21~", ["f10"]),
        (b"\x1b[1;5A\x1b[5;2~", ["up", "pgup"]),
        (b"\x0c\x12\r", ["ctrl-l", "ctrl-r", "enter"]),
        (b"\x1bq", ["esc", "q"]),
        ("ü日".encode(), []),
        (b"\x00\x07\x7f", []),
        (b"\x1b[200~s\x1b[201~", ["s"]),
        (b"\x1b[<0;10;20M", []),
    ],
)
def test_keys_have_names(sent: bytes, keys: list[str]) -> None:
    assert keys_in(sent) == (keys, b"")


@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[1;", b"\x1b[["])
def test_a_sequence_that_is_not_whole_waits_for_its_rest(begun: bytes) -> None:
    assert keys_in(b"j" + begun) == (["j"], begun)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([b"\x1b", b"[", b"O", b"1;5", b"A", b"~", b"5~", b"q", b"\xc3", b"\x0c"]), max_size=8),
    st.data(),
)
def test_bytes_mean_the_same_in_one_piece_and_in_two(pieces: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(pieces)
    cut = data.draw(st.integers(0, len(sent)))
    first, rest = keys_in(sent[:cut])
    second, end = keys_in(rest + sent[cut:])
    assert (first + second, end) == keys_in(sent)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A terminal whose other end is stdin: both ends."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_a_keyboard_gives_each_key_at_once_and_is_then_as_it_was(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    with Keyboard() as keyboard:
        assert not termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO)
        assert termios.tcgetattr(theirs)[3] & termios.ISIG
        os.write(ours, b"s\x1b[6~")
        assert keyboard.read() == ["s", "pgdn"]
        os.write(ours, b"\x1b")
        assert keyboard.read() == ["esc"]
    assert termios.tcgetattr(theirs) == before


def test_a_keyboard_is_as_it_was_after_an_exception(terminal: tuple[int, int]) -> None:
    before = termios.tcgetattr(terminal[1])
    with pytest.raises(ZeroDivisionError), Keyboard():
        raise ZeroDivisionError
    assert termios.tcgetattr(terminal[1]) == before


def test_a_signal_on_the_way_leaves_no_mode_half_set(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_modes, is_met = termios.tcsetattr, cycle((True, False))

    def interrupted(*how: Any) -> None:
        if next(is_met):
            raise termios.error(errno.EINTR, "Interrupted system call")
        set_modes(*how)

    before = termios.tcgetattr(terminal[1])
    monkeypatch.setattr(termios, "tcsetattr", interrupted)
    with Keyboard():
        assert not termios.tcgetattr(terminal[1])[3] & termios.ECHO
    assert termios.tcgetattr(terminal[1]) == before


def test_a_terminal_that_is_gone_has_no_more_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Keyboard() as keyboard:
            os.close(ours)
            assert (keyboard.read(), keyboard.is_open) == ([], False)


def test_a_pipe_is_no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert not Keyboard.is_there()
