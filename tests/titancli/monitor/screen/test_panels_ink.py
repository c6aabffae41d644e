"""Lines, bars and curves."""

from __future__ import annotations

import io

import pytest

from titancli.monitor.screen.panels_ink import (
    ASCII,
    SIGNS,
    Ink,
    bar,
    cells,
    chart,
    curve,
    cut,
    cut_line,
    padded,
    spread,
    stretched,
    text_of,
    track,
)


@pytest.mark.parametrize(
    ("values", "bars"),
    [((), ""), ((2.0,), "▁"), ((1.0, 1.0), "▁▁"), ((8.0, 1.0), "█▁"), ((0.0, 7.0, 14.0), "▁▅█")],
)
def test_curve_spans_lowest_to_highest(values: tuple[float, ...], bars: str) -> None:
    assert curve(values) == bars


def test_curve_of_many_values_is_of_their_means() -> None:
    assert curve((0.0, 2.0, 6.0, 8.0), width=2) == curve((1.0, 7.0))


def test_first_losses_do_not_flatten_the_rest() -> None:
    losses = [10.0, *(3.0 - number / 40 for number in range(39))]
    assert len(set(curve(losses, 40)[2:])) > 4


def test_few_values_are_stretched_over_a_width() -> None:
    assert stretched((1.0, 2.0), 4) == [1.0, 1.0, 2.0, 2.0]
    assert stretched((1.0,), 4) == [1.0]
    assert stretched((1.0, 2.0, 3.0), 2) == [1.0, 2.0, 3.0]


def test_chart_is_the_curve_over_lines() -> None:
    assert chart((0.0, 0.5, 1.0), 3, 2, SIGNS) == [" ▁█", "▁██"]
    assert chart((0.0, 1.0), 2, 3, ASCII) == [" #", " #", "_#"]
    assert chart((), 3, 2, SIGNS) == ["", ""]


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(None, ""), (0.0, ""), (-1.0, ""), (0.001, "▏"), (5.0, "██▌"), (10.0, "█████"), (99.0, "█████")],
)
def test_bar_is_as_long_as_its_share_and_never_lies_about_something(value: float | None, drawn: str) -> None:
    assert bar(value, 10.0, 5, SIGNS) == drawn


def test_bar_in_ascii_and_of_nothing() -> None:
    assert bar(5.0, 10.0, 4, ASCII) == "##"
    assert bar(5.0, 0.0, 4, SIGNS) == ""


def test_what_is_done_and_what_is_open_differ_without_colour() -> None:
    assert "".join(text for text, _ in track(0.5, 8, SIGNS)) == "━━━━────"
    assert "".join(text for text, _ in track(2.0, 4, ASCII)) == "####"


@pytest.mark.parametrize(
    ("text", "width", "kept"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 4, "日…"), ("日本", 4, "日本"), ("a", 0, "")],
)
def test_text_is_cut_by_columns(text: str, width: int, kept: str) -> None:
    assert cut(text, width, SIGNS) == kept
    assert cells(kept) <= width


def test_line_is_cut_where_its_columns_end() -> None:
    line = (("abc", "red"), ("日本", ""), ("x", ""))
    assert cut_line(line, 6, SIGNS) == (("abc", "red"), ("日…", ""))
    assert cut_line(line, 8, SIGNS) == line


def test_padding_counts_columns() -> None:
    assert padded("日", 4) == "日  "
    assert padded("5", 3, right=True) == "  5"


def test_what_has_no_room_at_the_right_is_left_out() -> None:
    left, right = (("left", ""),), (("right", ""),)
    assert "".join(text for text, _ in spread(left, right, 12, SIGNS)) == "left   right"
    assert "".join(text for text, _ in spread(left, right, 9, SIGNS)) == "left"


def test_signs_are_those_that_a_stream_can_take() -> None:
    assert Ink.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) is SIGNS
    for encoding in ("ascii", "latin-1", "cp437"):
        assert Ink.of(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is ASCII


def test_ascii_signs_are_ascii() -> None:
    assert all(getattr(ASCII, name).isascii() for name in Ink.__dataclass_fields__)


def test_text_keeps_its_tints_and_is_never_read_as_markup() -> None:
    text = text_of([(("[red]x[/nonsense]", "bold"), ("y", "")), (("z", ""),)])
    assert text.plain == "[red]x[/nonsense]y\nz"
    assert [str(span.style) for span in text.spans] == ["bold"]
