"""Curves in a terminal: letters, dots, axes, and what lies in one cell."""

from __future__ import annotations

import re

import pytest

from titancli.charts import Pen
from titancli.compare.drawing import Line, drawing

FALLING = tuple((float(step), 10.0 - step) for step in range(1, 9))
LEVEL = tuple((float(step), 6.0) for step in range(1, 9))
ASCII = Pen(has_blocks=False, has_colour=False)
PLAIN = Pen(has_blocks=True, has_colour=False)
COLOUR = Pen(has_blocks=True, has_colour=True)
CODE = re.compile(r"\x1b\[[\d;]*m")


def lines(*points: tuple[tuple[float, float], ...]) -> list[Line]:
    return [Line(mark="AB"[number], colour=("34", "33")[number], points=each) for number, each in enumerate(points)]


def drawn(pen: Pen, *points: tuple[tuple[float, float], ...], width: int = 40, height: int = 7) -> list[str]:
    return drawing(lines(*points), "steps", title="loss against steps", width=width, height=height, pen=pen)


def test_letters_of_ascii_show_curves_and_the_numbers_of_both_axes() -> None:
    assert drawn(ASCII, FALLING, LEVEL) == [
        "loss against steps",
        "    |    AAA",
        "7.5 |       AAAAA",
        "    |            AAAAA",
        "5.0 |    BBBBBBBBBBBBBBABABBBBBBBBBBBBBB",
        "    |                      AAAAA",
        "    |                           AAAAA",
        "2.5 |                                AAA",
        "    +-----------------------------------",
        "     0                    5",
        "                                   steps",
    ]


def test_with_colour_curves_are_dots_of_their_own_colours() -> None:
    told = drawn(COLOUR, FALLING, LEVEL)
    assert "\x1b[34m" in told[1]
    assert {code for row in told[1:8] for code in CODE.findall(row)} == {"\x1b[34m", "\x1b[33m", "\x1b[0m"}
    rows = [CODE.sub("", row) for row in told]
    assert all("A" not in row and "B" not in row for row in rows[1:8])
    assert "⠢" in "".join(rows)


@pytest.mark.parametrize("pen", [ASCII, PLAIN, COLOUR])
@pytest.mark.parametrize("width", [20, 40, 60, 120])
def test_drawing_is_as_wide_as_asked_for_and_no_wider(pen: Pen, width: int) -> None:
    told = [CODE.sub("", line) for line in drawn(pen, FALLING, width=width)]
    assert max(map(len, told[1:])) == max(width, 25)


def test_curves_that_run_together_show_by_turns() -> None:
    row = drawn(PLAIN, LEVEL, LEVEL)[4]
    assert "ABABAB" in row


def test_many_points_are_drawn_as_the_mean_of_each_column() -> None:
    noisy = tuple((float(step), 5.0 + (1 if step % 2 else -1)) for step in range(10_000))
    told = drawn(PLAIN, noisy)
    assert sum("AAAA" in row for row in told) == 1


def test_gaps_between_far_points_are_filled_by_a_line() -> None:
    told = drawn(PLAIN, ((0.0, 2.0), (100.0, 2.0)))
    assert any("A" * 34 in row for row in told)


def test_losses_that_lie_above_are_said_in_the_title() -> None:
    points = tuple((float(step), 100.0 if step < 3 else 3.0 - step / 100) for step in range(1, 101))
    assert drawn(PLAIN, points)[0] == "loss against steps (first losses, up to 100, lie above)"


def test_nothing_is_drawn_without_points() -> None:
    assert drawn(PLAIN, (), ()) == []


def test_single_point_is_drawn() -> None:
    assert any("A" in row for row in drawn(PLAIN, ((1.0, 3.0),))[1:])
