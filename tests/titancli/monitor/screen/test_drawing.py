"""A whole screen, at every size."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from frames import busy, frame, row, screen, training
from hypothesis import given, settings
from hypothesis import strategies as st

from titancli.monitor.screen.drawing import drawing
from titancli.monitor.screen.panels_ink import ASCII, SIGNS, cells
from titancli.monitor.screen.view import Extent, View

ALERTS = (
    "W203: tensor-parallel all-gathers are exposed 18 % of the step; fix: set x = true",
    "W210: rank 5 is slow; fix: look at it",
)
EIGHT = training([busy(rank) for rank in range(8)], alerts=ALERTS)
MANY = training([busy(rank) for rank in range(512)], alerts=ALERTS)
BARE = frame([row(0), row(1)], heard=False, state="starting")
SIZES = [(60, 15), (80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_what_matters_most_is_on_every_screen(columns: int, rows: int) -> None:
    text = "\n".join(screen(MANY, columns, rows))
    for wanted in ("demo · running", "1,234 of 5,000", "2.3456", "10,000 tokens/s/GPU", "W203: ", "512, worst first"):
        assert wanted in text


@pytest.mark.parametrize("shown", [EIGHT, MANY, BARE], ids=["eight", "many", "bare"])
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 260), st.integers(1, 90), st.sampled_from(["panels", "alerts", "help"]), st.integers(0, 600))
def test_a_screen_has_its_size_whatever_it_is(shown: Any, columns: int, rows: int, shows: Any, top: int) -> None:
    lines = screen(shown, columns, rows, view=View(shows=shows, top=top))
    assert len(lines) == rows
    assert max(map(cells, lines)) <= columns


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("shows", ["panels", "alerts", "help"])
def test_ascii_is_enough(columns: int, rows: int, shows: Any) -> None:
    pictured = drawing(MANY, columns, rows, view=View(shows=shows), ink=ASCII)
    from frames import lines_of

    assert all(line.isascii() for line in lines_of(pictured.picture, columns, rows, "ascii"))


def test_larger_screens_show_more_ranks_and_more_of_each() -> None:
    extents = [drawing(MANY, *size, view=View(), ink=SIGNS).extent for size in SIZES]
    assert [extent.count for extent in extents] == [512] * 4
    shown = [extent.last - extent.first for extent in extents]
    assert shown == sorted(shown)
    assert shown[0] >= 2
    assert shown[-1] >= 25


def test_what_is_said_of_ranks_is_what_stands_there() -> None:
    view = View(order="rank", top=100)
    lines = screen(MANY, 120, 40, view=view)
    extent = drawing(MANY, 120, 40, view=view, ink=SIGNS).extent
    assert any(f"ranks {extent.first + 1}-{extent.last} of 512, by number" in line for line in lines)
    assert sum(line.split()[1].isdecimal() and "node" not in line for line in lines if line.startswith("│  ")) > 0
    assert any(line.split()[1:2] == ["100"] for line in lines)
    assert not any(line.split()[1:2] == ["99"] for line in lines)


def test_all_alerts_can_be_read() -> None:
    many = training([busy(0)], alerts=tuple(f"W203: alert {number}; fix: {number}" for number in range(40)))
    first = drawing(many, 60, 15, view=View(shows="alerts"), ink=SIGNS)
    assert first.extent == Extent(first=0, last=13, count=80)
    last = "\n".join(screen(many, 60, 15, view=View(shows="alerts", top=1000)))
    assert "alert 39" in last
    assert "a back" in last


def test_no_alert_is_said_in_a_word_once_steps_are_done() -> None:
    assert "no alerts" in screen(training([busy(0)]), 60, 15)[0]
    assert "no alerts" not in screen(BARE, 60, 15)[0]


def test_last_line_tells_the_keys_that_are_of_use() -> None:
    assert screen(EIGHT, 120, 40)[-1].startswith("q leave   ? help   s sort   n/p page   a alerts   space hold")
    assert screen(EIGHT, 120, 40)[-1].rstrip().endswith("heard of 3.0 s ago")
    assert screen(EIGHT, 30, 15)[-1].rstrip() == "q leave   ? help   s sort"
    assert screen(EIGHT, 80, 24, has_keys=False)[-1].startswith("Ctrl-C leave")
    assert screen(EIGHT, 80, 24, view=View(is_held=True))[-1].rstrip().endswith("held: space goes on")


def test_no_control_character_of_a_run_reaches_the_screen() -> None:
    evil = "\x1b[2J\x07\r\x9b31m\N{RIGHT-TO-LEFT OVERRIDE}\N{LINE SEPARATOR}\N{FIRST STRONG ISOLATE}"
    rows = [busy(0, host=evil, gpu=evil, reasons={"sm_pct": evil}, sm_pct=None)]
    shown = training(rows, run=evil, alerts=(evil,), seen={"phase": evil})
    text = "".join(screen(shown, 200, 60))
    assert [sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Zl")] == []


def test_a_run_without_ranks_has_none() -> None:
    text = "\n".join(screen(frame([], heard=False, state="starting"), 120, 40))
    assert "0 ranks" in text
