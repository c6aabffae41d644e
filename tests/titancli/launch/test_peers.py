"""What launchers of one run tell each other while it goes on, over real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from titancli.launch.peers import Peers
from titancli.launch.roll_call import Guest
from titancli.launch.supervise import Ending
from titancli.launch.wire import Line
from titancli.monitor.run_state import Failure, RunState

BOOM = Failure(rank=3, host="host1", type="ValueError", message="boom-17\nmore")
RESET = Failure(rank=0, host="host0", type="RuntimeError", message="Connection reset by peer")
Rooms = tuple[Peers, ...]


@pytest.fixture
def peers() -> Iterator[Callable[[int], Rooms]]:
    """The launchers of so many machines, met."""
    made: list[Peers] = []

    def make(count: int) -> Rooms:
        guests: list[Guest] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            for rank in range(1, count):
                line = Line(socket.create_connection(server.getsockname()))
                guests.append(Guest(rank=rank, host=f"host{rank}", line=Line(server.accept()[0])))
                made.append(Peers(rank, [Guest(rank=0, host="host0", line=line)], silence_s=30.0))
        made.insert(0, Peers(0, guests, silence_s=30.0))
        return tuple(made)

    yield make
    for each in made:
        each.close()


def ended(exit_code: int, killed_by: str | None = None) -> Ending:
    return Ending(exit_code=exit_code, state=RunState(), seconds=1.0, killed_by=killed_by)


def settled(rooms: Rooms, *endings: tuple[Any, ...], was_asked: bool = False) -> list[Ending]:
    """Each with its exit code, its failures and what killed torchrun; machine 0 then lets the others go."""
    results: dict[int, Ending] = {}

    def settle(peers: Peers, exit_code: int, failures: list[Failure], killed_by: str | None = None) -> None:
        results[peers.node] = peers.settle(
            ended(exit_code, killed_by), failures, log=f"/logs/node-{peers.node}", patience_s=20.0, was_asked=was_asked
        )
        if peers.is_head:
            peers.close()

    threads = [
        threading.Thread(target=settle, args=(room, *ending)) for room, ending in zip(rooms, endings, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[node] for node in sorted(results)]


def test_run_that_is_complete_everywhere_ended_well(peers: Callable[[int], Rooms]) -> None:
    assert [(each.exit_code, each.elsewhere) for each in settled(peers(3), (0, []), (0, []), (0, []))] == [(0, "")] * 3


def test_cause_on_one_node_is_told_on_all_others(peers: Callable[[int], Rooms]) -> None:
    head, cause, third = settled(peers(3), (1, [RESET]), (1, [BOOM, RESET]), (0, []))
    assert [each.exit_code for each in (head, cause, third)] == [1, 1, 1]
    for each in (head, third):
        says = "ended with exit code 1: rank 3 failed first: ValueError: boom-17\n  --> "
        assert f"error[R158]: node 1 ({socket.gethostname()}) {says}" in each.elsewhere
        assert ":/logs/node-1\n" in each.elsewhere
    assert not cause.elsewhere.startswith("error[R158]: node 1")


def test_what_is_wrong_with_a_config_or_memory_keeps_its_code(peers: Callable[[int], Rooms]) -> None:
    assert [each.exit_code for each in settled(peers(2), (1, [RESET]), (3, [BOOM]))] == [3, 3]


def test_launcher_that_was_asked_to_end_has_ended_so(peers: Callable[[int], Rooms]) -> None:
    head, _ = settled(peers(2), (130, []), (1, [BOOM]), was_asked=True)
    assert (head.exit_code, head.elsewhere) == (130, "")


def test_interrupt_on_one_node_is_the_code_of_all(peers: Callable[[int], Rooms]) -> None:
    assert [each.exit_code for each in settled(peers(2), (130, []), (130, []))] == [130, 130]


def test_launcher_that_is_gone_without_a_word_failed_the_run(peers: Callable[[int], Rooms]) -> None:
    head, lost = peers(2)
    lost.close()
    (news,) = [*head.news()]
    assert (news.is_orderly, str(news)) == (
        False,
        "the launcher of node 1 (host1) is gone without a word, as if it was killed",
    )
    assert head.news() == []
    ending = head.settle(ended(143), [], log="", patience_s=20.0, was_asked=False)
    assert (ending.exit_code, ending.elsewhere.startswith("error[R157]: the launcher of node 1 (host1) is gone")) == (
        1,
        True,
    )
    assert not head.are_all_there


def test_signal_that_killed_torchrun_is_told_on_the_others(peers: Callable[[int], Rooms]) -> None:
    head, _ = settled(peers(2), (1, [RESET]), (1, [RESET], "SIGKILL"))
    assert "torchrun, the parent of its ranks, was killed by SIGKILL from outside" in head.elsewhere


def test_node_that_was_lost_is_named_before_one_that_had_to_follow(peers: Callable[[int], Rooms]) -> None:
    head, follower, lost = peers(3)
    lost.close()
    ending, _ = settled((head, follower), (1, [RESET]), (1, [RESET]))
    assert ending.elsewhere.startswith("error[R157]: the launcher of node 2 (host2) is gone without a word")


def test_bad_end_is_passed_on_before_all_have_ended(peers: Callable[[int], Rooms]) -> None:
    head, cause, third = peers(3)
    ends = threading.Thread(
        target=lambda: cause.settle(ended(1), [BOOM], log="", patience_s=20.0, was_asked=False), daemon=True
    )
    ends.start()
    while not head.news():
        pass
    while not (news := third.news()):
        pass
    assert (news[0].node, news[0].exit_code, news[0].is_orderly) == (1, 1, False)
    head.close()
    ends.join()


def test_machine_0_decides_what_comes_next(peers: Callable[[int], Rooms]) -> None:
    head, other = peers(2)
    ends = threading.Thread(target=lambda: other.settle(ended(1), [BOOM], log="", patience_s=20.0, was_asked=False))
    ends.start()
    head.settle(ended(1), [RESET], log="", patience_s=20.0, was_asked=False)
    assert head.are_all_there
    head.again("restart 1 of 1", {"training.local_batch_size": 2})
    ends.join()
    assert other.word() == ("restart 1 of 1", {"training.local_batch_size": 2})
    assert other.word() is None
    assert [each.exit_code for each in settled((head, other), (0, []), (0, []))] == [0, 0]


def test_what_machine_0_has_found_holds_for_all(peers: Callable[[int], Rooms]) -> None:
    head, other = peers(2)
    assert head.same(3, within_s=5.0) == 3
    assert other.same(0, within_s=5.0) == 3


def test_nobody_waits_in_a_preflight_for_a_node_that_was_stopped(peers: Callable[[int], Rooms]) -> None:
    head, stopped, third = peers(3)
    assert head.missed() is None
    stopped.leave(130)
    while (gone := head.missed()) is None:
        pass
    assert (gone.node, gone.exit_code, gone.is_orderly) == (1, 130, True)
    while (gone := third.missed()) is None:
        pass
    assert gone.node == 1
    assert third.same(gone.exit_code or 0, within_s=0.0) == 130


def test_node_0_that_has_found_something_is_not_missed(peers: Callable[[int], Rooms]) -> None:
    head, other = peers(2)
    head.same(3, within_s=5.0)
    head.close()
    assert other.missed() is None
    assert other.same(0, within_s=5.0) == 3


def test_another_process_goes_on_with_the_connections(peers: Callable[[int], Rooms]) -> None:
    head, other = peers(2)
    handed = head.to_json()
    for each in handed["others"]:
        each["handle"] = os.dup(each["handle"])
    heir = Peers.from_json(handed)
    assert [each.exit_code for each in settled((heir, other), (0, []), (0, []))] == [0, 0]
