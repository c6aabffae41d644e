"""Launchers that find each other, over real sockets of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import TitanError
from engine.planner.plan import plan
from engine.sources import Flag, load
from titancli import report
from titancli.launch.meeting import Meeting
from titancli.launch.roll_call import Guest, NotMet, card_of, come, gather, raise_if_refused, turn_away
from titancli.launch.wire import Line, Message


class Room:
    """Machine 0, which listens, and others that come to it; each on a thread."""

    def __init__(self, listener: socket.socket, pool: ThreadPoolExecutor) -> None:
        self._listener, self._pool = listener, pool
        self.port = listener.getsockname()[1]
        self.said: list[str] = []
        self.lines: list[Line] = []

    def meeting(self, nodes: int, rank: int) -> Meeting:
        return Meeting(nodes=nodes, rank=rank, host="127.0.0.1", port=self.port)

    def head(self, nodes: int, *, timeout_s: float = 20.0, **flags: str) -> Future[list[Guest]]:
        mine = card(self.meeting(nodes, 0), **flags)
        return self._pool.submit(
            gather, self.meeting(nodes, 0), mine, self._listener, timeout_s=timeout_s, say=self.said.append
        )

    def turn_away(self, nodes: int, mistake: TitanError) -> Future[None]:
        meeting = self.meeting(nodes, 0)
        return self._pool.submit(turn_away, meeting, "x", self._listener, mistake, within_s=20.0)

    def come(self, rank: int, *, nodes: int = 2, timeout_s: float = 20.0, **changes: Any) -> Line:
        mine = {**card(self.meeting(nodes, rank)), **changes}
        line = come(self.meeting(nodes, rank), mine, timeout_s=timeout_s, say=self.said.append)
        self.lines.append(line)
        return line


def card(meeting: Meeting, **flags: str) -> Message:
    keys = {"cluster.gpu": "cpu", "cluster.nodes": str(meeting.nodes), "job.name": "x", **flags}
    loaded = load(environ={}, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()])
    return card_of(meeting, loaded, plan(loaded.config), resume=False, overwrite=False)


@pytest.fixture
def room() -> Iterator[Room]:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(4) as pool:
        room = Room(listener, pool)
        yield room
        for line in room.lines:
            line.close()


def refused(line: Line) -> str:
    """What machine 0 says to one that it has let in and then sent away."""
    told = line.wait(20)
    assert told is not None
    with pytest.raises(NotMet) as failed:
        raise_if_refused(told)
    return f"{failed.value.finding.rule} {failed.value.exit_code}: {failed.value.finding.message}"


def test_all_come_in_whatever_order_and_are_counted_by_their_numbers(room: Room) -> None:
    head = room.head(3)
    room.come(2, nodes=3)
    room.come(1, nodes=3)
    guests = head.result()
    assert [guest.rank for guest in guests] == [1, 2]
    assert room.said[0] == f"waiting for nodes 1, 2 at 127.0.0.1:{room.port}"
    for guest in guests:
        guest.line.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": 3}, "R150 2: node 1 (host1) was called with --nnodes 3, and node 0 with --nnodes 2"),
        ({"flags": {"--resume": True, "--overwrite": False}}, "R153 2: --resume was not given alike on node 1 (host1)"),
        ({"versions": {"torch": "2.0.0"}}, "R151 2: node 1 (host1) has torch 2.0.0 instead of "),
        ({"titan": 0}, "R151 2: node 1 (host1) has "),
    ],
    ids=["nnodes", "flags", "torch", "titan"],
)
def test_one_that_does_not_fit_ends_it_for_all_with_the_same_words(
    room: Room, changes: dict[str, Any], says: str
) -> None:
    head = room.head(2)
    line = room.come(1, host="host1", **changes)
    assert refused(line).startswith(says)
    with pytest.raises(TitanError) as mistake:
        head.result()
    assert f"{mistake.value.findings[0].rule} 2: {mistake.value.findings[0].message}".startswith(says)


def test_configs_that_differ_are_told_apart_by_their_keys(room: Room) -> None:
    head = room.head(2, **{"optimizer.lr": "3.0"})
    there = card(room.meeting(2, 1), **{"training.steps": "7", "job.dump_folder": "elsewhere"})
    told = refused(room.come(1, host="host1", config=there["config"]))
    assert told.startswith("R152 2: node 1 (host1) has another config than node 0: ")
    assert "training.steps is 7 there and 1000 on node 0" in told
    assert "optimizer.lr is" in told
    assert "dump_folder" not in told
    with pytest.raises(TitanError):
        head.result()


def test_two_of_one_number_are_both_told(room: Room) -> None:
    head = room.head(3)
    first = room.come(1, nodes=3, host="one")
    second = room.come(1, nodes=3, host="other")
    assert refused(first) == refused(second) == "R149 2: two of them call themselves node 1: one and other"
    with pytest.raises(TitanError):
        head.result()


def test_node_that_does_not_come_is_named_to_those_that_have(room: Room) -> None:
    head = room.head(3, timeout_s=1.0)
    line = room.come(2, nodes=3)
    says = f"R148 1: node 1 of 3 did not come to 127.0.0.1:{room.port} within 1 s"
    assert refused(line) == says
    with pytest.raises(NotMet) as failed:
        head.result()
    assert f"{failed.value.finding.rule} {failed.value.exit_code}: {failed.value.finding.message}" == says


def test_node_that_goes_away_may_come_again(room: Room) -> None:
    head = room.head(3)
    room.come(1, nodes=3).close()
    room.come(1, nodes=3)
    room.come(2, nodes=3)
    guests = head.result()
    assert [guest.rank for guest in guests] == [1, 2]
    assert any("has gone again" in text for text in room.said)
    for guest in guests:
        guest.line.close()


def test_strangers_at_the_door_change_nothing(room: Room) -> None:
    head = room.head(2)
    with socket.create_connection(("127.0.0.1", room.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(NotMet, match="what waits there is another run, x"):
            room.come(1, run="y", timeout_s=0.0)
        room.come(1)
        (guest,) = head.result()
    guest.line.close()


def test_more_strangers_than_are_kept_do_not_shut_the_door(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titancli.launch.roll_call._MOST_STRANGERS", 3)
    head = room.head(2)
    silent = [socket.create_connection(("127.0.0.1", room.port)) for _ in range(9)]
    room.come(1)
    (guest,) = head.result()
    guest.line.close()
    for stranger in silent:
        stranger.close()


@pytest.mark.parametrize("changes", [{"rank": 0}, {"rank": 2}, {"rows": [5]}, {"config": None}], ids=str)
def test_card_that_no_launcher_writes_is_a_strangers(room: Room, changes: dict[str, Any]) -> None:
    head = room.head(2)
    assert room.come(**{"rank": 1, **changes}).wait(5) is None
    room.come(1)
    (guest,) = head.result()
    guest.line.close()


@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "something-else"])
def test_what_listens_there_may_be_no_launch(room: Room, speaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titancli.launch.roll_call._GREETING_S", 0.3)
    over = threading.Event()

    def stand() -> None:
        connection, _ = room._listener.accept()
        with connection:
            if speaks:
                connection.sendall(b"220 mail\r\n")
            over.wait(20)

    room._pool.submit(stand)
    with pytest.raises(NotMet, match=r"R147.*is not a titan launch that waits for others"):
        room.come(1, timeout_s=0.0)
    over.set()


def test_refused_connection_is_told_with_host_port_and_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    meeting = Meeting(nodes=2, rank=1, host="127.0.0.1", port=port)
    said: list[str] = []
    with pytest.raises(NotMet) as failed:
        come(meeting, card(meeting), timeout_s=0.0, say=said.append)
    says = f"node 0 was not to be met at 127.0.0.1:{port} (this machine itself) within 0 s: connection refused"
    assert failed.value.finding.message.startswith(says)
    assert failed.value.exit_code == 1


def test_head_that_cannot_begin_tells_all_who_wait_why_and_no_other(room: Room) -> None:
    mistake = TitanError(report.error("R105", "x has another config", "give another --name"))
    told = room.turn_away(3, mistake)
    with socket.create_connection(("127.0.0.1", room.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said = [refused(room.come(rank, nodes=3)) for rank in (2, 1)]
        told.result(timeout=20)
        assert stranger.makefile("rb").read() == b'{"titan": 1, "run": "x", "nodes": 3}\n'
    assert said == ["R105 2: x has another config, says node 0"] * 2
