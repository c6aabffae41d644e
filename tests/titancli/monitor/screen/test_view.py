"""What keys change of how a run is looked at."""

from __future__ import annotations

import pytest

from titancli.monitor.screen.view import KEYS, Extent, View, after, pressed

TEN_OF_HUNDRED = Extent(first=20, last=30, count=100)


@pytest.mark.parametrize("key", ["q", "Q", "f10"])
def test_key_to_leave_with(key: str) -> None:
    assert pressed(View(), key, Extent()) is None


@pytest.mark.parametrize(
    ("key", "top"),
    [
        ("up", 19),
        ("k", 19),
        ("down", 21),
        ("j", 21),
        ("pgup", 10),
        ("p", 10),
        ("pgdn", 30),
        ("n", 30),
        ("home", 0),
        ("g", 0),
        ("end", 90),
        ("G", 90),
        ("x", 20),
    ],
)
def test_keys_move_through_the_rows(key: str, top: int) -> None:
    assert pressed(View(top=20), key, TEN_OF_HUNDRED) == View(top=top)


@pytest.mark.parametrize(
    ("key", "extent", "top"),
    [
        ("up", Extent(first=0, last=10, count=100), 0),
        ("pgup", Extent(first=4, last=14, count=100), 0),
        ("down", Extent(first=90, last=100, count=100), 90),
        ("pgdn", Extent(first=85, last=95, count=100), 90),
        ("end", Extent(first=0, last=5, count=5), 0),
        ("down", Extent(), 0),
    ],
)
def test_the_first_row_and_the_last_page_are_the_ends(key: str, extent: Extent, top: int) -> None:
    assert pressed(View(top=extent.first), key, extent) == View(top=top)


def test_keys_that_come_at_once_each_count() -> None:
    assert after(View(top=20), ["j", "j", "n"], TEN_OF_HUNDRED) == View(top=32)
    assert after(View(top=20), ["s", "j"], TEN_OF_HUNDRED) == View(order="rank", top=1)
    assert after(View(), ["j", "q", "j"], TEN_OF_HUNDRED) is None


def test_moving_begins_at_what_is_shown_though_fewer_ranks_are_left() -> None:
    assert pressed(View(top=500), "up", Extent(first=90, last=100, count=100)) == View(top=89)


def test_s_goes_through_all_orders_and_back_to_the_first() -> None:
    view, seen = View(top=7), []
    for _ in range(5):
        view = pressed(view, "s", TEN_OF_HUNDRED) or View()
        seen.append((view.order, view.top))
    assert seen == [("rank", 0), ("memory", 0), ("idle", 0), ("behind", 0), ("worst", 0)]
    assert pressed(View(), "S", TEN_OF_HUNDRED) == View(order="behind")


def test_r_turns_the_order_around_and_back() -> None:
    once = pressed(View(top=9), "r", TEN_OF_HUNDRED)
    assert once == View(is_reversed=True)
    assert pressed(once, "r", TEN_OF_HUNDRED) == View()


@pytest.mark.parametrize(("key", "order"), [("M", "memory"), ("N", "rank"), ("W", "worst")])
def test_orders_have_keys_of_their_own(key: str, order: str) -> None:
    view = pressed(View(order="idle", is_reversed=True), key, TEN_OF_HUNDRED)
    assert view is not None
    assert (view.order, view.is_reversed) == (order, False)


@pytest.mark.parametrize(("key", "shows"), [("?", "help"), ("h", "help"), ("f1", "help"), ("a", "alerts")])
def test_pages_come_and_go_with_the_same_key(key: str, shows: str) -> None:
    page = pressed(View(top=9), key, TEN_OF_HUNDRED)
    assert page is not None
    assert (page.shows, page.top) == (shows, 0)
    assert pressed(page, key, Extent()) == View()
    assert pressed(page, "esc", Extent()) == View()


def test_escape_does_not_leave() -> None:
    assert pressed(View(), "esc", Extent()) == View()


def test_the_page_of_help_keeps_the_order_and_can_be_scrolled() -> None:
    page = View(shows="help")
    assert pressed(page, "s", Extent(first=0, last=5, count=20)) == page
    assert pressed(page, "n", Extent(first=0, last=5, count=20)) == View(shows="help", top=5)


def test_space_holds_and_lets_go() -> None:
    held = pressed(View(), " ", Extent())
    assert held == View(is_held=True)
    assert pressed(held, " ", Extent()) == View()


def test_help_names_every_key_that_does_something() -> None:
    named = {word.strip(",") for keys, _ in KEYS for word in keys.split()}
    does = {key for key in map(chr, range(33, 127)) if pressed(View(top=20), key, TEN_OF_HUNDRED) != View(top=20)}
    # Doubles that other tools have.
    assert does - named == {"Q", "A", "R", "Z", ".", ">", ",", "<", "/"}
