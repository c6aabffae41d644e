"""What becomes of a sink that fails, is slow, or does not come to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.events import Event
from engine.sinks.feed import Feed

Told = Callable[..., Event]
LONG_S = 20.0


class Kept:
    """Keeps events; waits before each batch until it may go on."""

    key, name = "metrics.kept", "A list"

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.may_go_on, self.is_at_it, self.is_closed = threading.Event(), threading.Event(), False
        self.may_go_on.set()

    def load(self) -> None:
        """Nothing."""

    def take(self, events: Sequence[Event]) -> None:
        self.is_at_it.set()
        assert self.may_go_on.wait(LONG_S)
        self.events += events

    def close(self) -> None:
        self.is_closed = True

    def advice(self, failure: BaseException) -> str:
        return f"mend {type(failure).__name__}"


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A sink whose thread is not left waiting."""
    sink = Kept()
    yield sink
    sink.may_go_on.set()


def test_a_sink_gets_every_event_in_order_from_the_first_on(kept: Kept, told: Told, started: Told) -> None:
    said: list[str] = []
    feed = Feed(kept, say=said.append)
    events = [told("phase", name="build"), started(), *(told("warning", message=str(n)) for n in range(50))]
    for event in events:
        feed.put(event)
        feed.begin()
    feed.close(LONG_S)
    assert (kept.events, kept.is_closed, said, feed.left_out) == (events, True, [], "")


def test_a_feed_that_never_begins_opens_no_sink(kept: Kept, told: Told) -> None:
    feed = Feed(kept, say=print)
    feed.put(told("phase", name="build"))
    feed.close(LONG_S)
    assert (kept.events, kept.is_closed) == ([], False)


def test_a_sink_that_does_not_keep_up_misses_events_which_are_counted_and_told_once(
    kept: Kept, told: Told, started: Told
) -> None:
    said: list[str] = []
    feed = Feed(kept, say=said.append, most_waiting=2)
    kept.may_go_on.clear()
    feed.put(started())
    feed.begin()
    assert kept.is_at_it.wait(LONG_S)
    for number in range(5):
        feed.put(told("warning", message=str(number)))
    assert said == ["metrics.kept: A list does not keep up, and misses events"]
    assert feed.left_out == "metrics.kept: A list has missed 3 events"
    kept.may_go_on.set()
    feed.close(LONG_S)
    assert [event.get("message") for event in kept.events] == [None, "0", "1"]


class Failing(Kept):
    """Fails at what it is told to."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def fail(self, at: str) -> None:
        if at == self.at:
            raise OSError(f"no {at}\nand more words")

    def load(self) -> None:
        self.fail("load")

    def take(self, events: Sequence[Event]) -> None:
        self.fail("take")
        super().take(events)

    def close(self) -> None:
        self.fail("close")


@pytest.mark.parametrize("at", ["load", "take", "close"])
def test_a_sink_that_fails_is_told_of_once_with_the_way_out_and_left_alone(at: str, told: Told, started: Told) -> None:
    said: list[str] = []
    feed = Feed(Failing(at), say=said.append)
    feed.put(started())
    feed.begin()
    feed.put(told("warning", message="more"))
    feed.close(LONG_S)
    feed.close(LONG_S)
    feed.put(told("warning", message="later"))
    assert said == [f"metrics.kept: A list takes in no more of this run (OSError: no {at}); mend OSError"]


def test_an_end_is_not_waited_for_longer_than_it_may_take(kept: Kept, told: Told, started: Told) -> None:
    said: list[str] = []
    feed = Feed(kept, say=said.append)
    kept.may_go_on.clear()
    feed.put(started())
    feed.begin()
    assert kept.is_at_it.wait(LONG_S)
    feed.put(told("run_ended", exit_code=0))
    feed.close(0.01)
    assert said == ["metrics.kept: A list has not taken in 2 events within 0 s; mend TimeoutError"]
