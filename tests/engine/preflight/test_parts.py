"""Parts within their deadlines, on ranks that are threads with one store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from engine.preflight.measuring import WrongResult
from engine.preflight.parts import Parts
from engine.preflight.relay import Lost, Relay, nodes_of

Work = Callable[[], Mapping[str, Any]]


def done(
    *works: Work | None, deadline_s: float = 0.3, groups: tuple[tuple[int, ...], ...] = ()
) -> tuple[Parts, list[bool]]:
    """One part on so many ranks; a rank without work says nothing. Gives rank 0's parts, and whether each goes on."""
    store = HashStore()
    parts = [Parts(Relay(store, rank, len(works))) for rank in range(len(works))]

    def do(rank: int) -> bool:
        work = works[rank]
        return False if work is None else parts[rank].do("part", work, deadline_s, groups=groups)

    with ThreadPoolExecutor(len(works)) as threads:
        return parts[0], list(threads.map(do, range(len(works))))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.preflight.parts.TELL_S", 0.3)


def says(value: int) -> Work:
    return lambda: {"value": value}


@pytest.fixture
def hangs() -> Any:
    """A work that does not come to its end before the test does."""
    over = threading.Event()

    def wait() -> Mapping[str, Any]:
        over.wait()
        return {}

    yield wait
    over.set()


def test_rank_0_has_what_all_ranks_found_and_all_go_on() -> None:
    parts, on = done(says(4), says(5), says(6), deadline_s=20)
    assert parts.found == {"part": {rank: {"value": 4 + rank} for rank in range(3)}}
    assert (parts.failed, on) == ([], [True] * 3)


def test_a_rank_that_hangs_is_named_and_nobody_goes_on(hangs: Work) -> None:
    parts, on = done(says(1), hangs, groups=((0, 1),))
    assert on == [False, False]
    (failed,) = parts.failed
    assert (failed.rank, failed.part, failed.hangs, failed.group) == (1, "part", True, (0, 1))
    assert failed.reason == "did not come to an end within 0 s"


def test_rank_0_itself_may_hang(hangs: Work) -> None:
    parts, on = done(hangs, says(1))
    assert ([failed.rank for failed in parts.failed], on) == ([0], [False, False])


def test_a_rank_that_says_nothing_is_named() -> None:
    parts, _ = done(says(1), None, says(3))
    assert [(failed.rank, failed.silent) for failed in parts.failed] == [(1, True)]


def test_an_exception_is_told_with_its_type() -> None:
    def fails() -> Mapping[str, Any]:
        raise ValueError("boom-17")

    parts, on = done(says(1), fails, deadline_s=20)
    assert ([failed.reason for failed in parts.failed], on) == (["failed: ValueError: boom-17"], [False, False])


def test_a_wrong_result_is_told_as_one() -> None:
    def wrong() -> Mapping[str, Any]:
        raise WrongResult("1 + 1 is 3")

    parts, _ = done(wrong, deadline_s=20)
    assert [(failed.reason, failed.wrong) for failed in parts.failed] == [("computes wrongly: 1 + 1 is 3", True)]


def test_who_does_not_hear_rank_0_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.preflight.relay._ANSWER_S", 0.1)
    with pytest.raises(Lost, match="rank 0 has not ended the part 'part' within 1 s"):
        Parts(Relay(HashStore(), 1, 2)).do("part", says(1), 0.3)


def test_ranks_are_told_apart_by_node_and_local_rank() -> None:
    places = {0: {"node": 0, "local_rank": 1}, 1: {"node": 0, "local_rank": 0}, 2: {"node": 1, "local_rank": 0}}
    assert nodes_of(places) == [[1, 0], [2]]
