"""Messages between two launchers, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from titancli.launch import wire
from titancli.launch.wire import Line


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    """A line, and the bare socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with mine, theirs:
        yield Line(mine), theirs


def test_messages_arrive_whole_and_in_order(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(b'{"a": 1}\n{"b":')
    assert line.wait(5) == {"a": 1}
    assert line.wait(0) is None
    other.sendall(b' 2}\n{"c": 3}\n')
    assert line.wait(5) == {"b": 2}
    assert line.read() == [{"c": 3}]
    line.send({"d": [1, None]})
    assert other.recv(100) == b'{"d": [1, null]}\n'


def test_closed_line_is_gone_once_its_last_word_is_read(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(b'{"last": true}\n')
    other.close()
    assert line.wait(5) == {"last": True}
    assert line.wait(5) is None
    assert (line.is_gone, line.why_gone) == (True, "")


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n"])
def test_who_speaks_something_else_is_gone(ends: tuple[Line, socket.socket], noise: bytes) -> None:
    line, other = ends
    other.sendall(noise)
    assert line.wait(5) is None
    assert line.is_gone


def test_message_without_end_is_not_kept(ends: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MOST_BYTES", 100)
    line, other = ends
    other.sendall(b"3" * 101)
    assert line.wait(5) is None
    assert line.is_gone


@pytest.mark.parametrize("noise", [b"1\n" * 5, b"[" * 100_000 + b"\n"])
def test_what_is_no_message_ends_the_line(ends: tuple[Line, socket.socket], noise: bytes) -> None:
    line, other = ends
    other.sendall(noise)
    assert line.wait(5) is None
    assert line.is_gone


def test_who_sends_for_ever_is_not_read_for_ever(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    over = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                other.send(b"{}\n" * 10_000)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert line.wait(5) == {}
    finally:
        over.set()
        line.close()
        sender.join()


def test_address_of_who_broke_the_line_is_told_in_words(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    assert line.there == "an address that is gone again"
