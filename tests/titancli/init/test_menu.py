"""Menus: what keys make of them, and how they are drawn where there is little room."""

from __future__ import annotations

import pytest

from titancli.init import menu as menus
from titancli.init.menu import BACK, QUIT, Menu, Picking, Row

MODELS = Menu(
    text="Which model?",
    about="Enter: llama3 8B. one node trains it, and this reason is longer than what fits on a line",
    rows=tuple(
        Row(value=f"{name} {size}", title=f"{name} {size}", note="many layers")
        for name in ("llama3", "qwen3")
        for size in ("1B", "8B", "70B", "405B", "14B", "32B", "3B", "0.6B", "4B")
    ),
    default="llama3 8B",
)
NODES = Menu(
    text="How many?",
    about="",
    rows=tuple(Row(value=str(count), title=f"{count} machines") for count in (1, 2, 32)),
    default="1",
    is_open=True,
)


def after(menu: Menu, *letters: str) -> Picking:
    picking = menus.opened(menu)
    for letter in letters:
        picking = menus.typed(picking, letter)
    return picking


def test_enter_takes_the_default() -> None:
    assert menus.entered(menus.opened(MODELS)) == "llama3 8B"


def test_arrows_go_around_the_ends() -> None:
    up = menus.moved(menus.moved(menus.opened(NODES), -1), -1)
    assert menus.entered(up) == BACK
    assert menus.entered(menus.moved(menus.moved(up, 1), 1)) == "1"


@pytest.mark.parametrize(
    ("word", "answer"), [("70", "llama3 70B"), ("qwen3 8", "qwen3 8B"), ("LLAMA3 4", "llama3 405B")]
)
def test_letters_point_at_a_row(word: str, answer: str) -> None:
    assert menus.entered(after(MODELS, *word)) == answer


def test_what_no_row_has_is_the_answer_as_it_was_typed() -> None:
    assert menus.entered(after(MODELS, *"gpt 5")) == "gpt 5"


def test_what_a_title_has_in_its_middle_points_at_no_row() -> None:
    plans = Menu(
        text="Which plan?",
        about="",
        rows=tuple(Row(value=place, title=f"{place}  {rate} tokens/s") for place, rate in (("1", "9,060"), ("2", "8"))),
        default="1",
    )
    assert menus.entered(after(plans, "9")) == "9"
    assert menus.entered(after(plans, "2")) == "2"


def test_q_points_at_what_it_does_where_answers_begin_with_it_too() -> None:
    picking = after(MODELS, "q")
    assert picking.cursor == [row.value for row in MODELS.all_rows].index(QUIT)
    assert menus.entered(after(MODELS, *"qw")) == "qwen3 1B"


def test_a_number_is_taken_as_it_is_and_not_as_the_row_that_begins_so() -> None:
    assert menus.entered(after(NODES, "3")) == "3"
    assert menus.entered(after(NODES, "2")) == "2"


def test_erasing_all_that_is_typed_leads_to_the_default() -> None:
    assert menus.entered(menus.erased(after(NODES, "3"))) == "1"


@pytest.mark.parametrize(("word", "answer"), [("back", BACK), ("quit", QUIT), ("q", QUIT)])
def test_ways_out_can_be_typed(word: str, answer: str) -> None:
    assert menus.entered(after(MODELS, *word)) == answer


def test_q_leaves_at_once_where_no_answer_begins_with_it() -> None:
    assert menus.quits(menus.opened(NODES), "q")
    assert not menus.quits(menus.opened(MODELS), "q")


@pytest.mark.parametrize(("columns", "lines"), [(60, 20), (60, 10), (40, 8), (200, 50)])
@pytest.mark.parametrize("at", [0, 9, 19])
def test_the_row_that_is_pointed_at_is_seen_on_any_screen(columns: int, lines: int, at: int) -> None:
    picking = menus.opened(MODELS)
    for _ in range(at):
        picking = menus.moved(picking, 1)
    drawn = menus.drawn(picking, columns=columns, lines=lines)
    assert len(drawn) < lines
    assert max(len(text) for _, text in drawn) < columns
    assert [text for style, text in drawn if style == "reverse"] == [f"> {MODELS.all_rows[(1 + at) % 20].title}"]


@pytest.mark.parametrize(("columns", "lines"), [(1, 24), (2, 2), (1, 1), (3, 0)])
def test_a_window_without_room_for_a_word_has_the_row_that_is_pointed_at(columns: int, lines: int) -> None:
    drawn = menus.drawn(menus.opened(MODELS), columns=columns, lines=lines)
    assert [text for style, text in drawn if style == "reverse"] == ["> llama3"]


def test_rows_without_room_are_counted() -> None:
    drawn = menus.drawn(menus.opened(MODELS), columns=60, lines=12)
    assert any("more above" in text and "below" in text for _, text in drawn)
