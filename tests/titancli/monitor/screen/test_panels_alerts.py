"""Alerts, with the way out of each."""

from __future__ import annotations

import pytest
from frames import frame

from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_alerts import alert_lines, alert_title
from titancli.monitor.screen.panels_ink import SIGNS, cells

TWO = frame(
    alerts=(
        "W203: tensor-parallel all-gathers are exposed 18 % of the step; fix: set x = true",
        "rank 0: something else",
    )
)


def said(shown: Frame, width: int = 60, height: int | None = None) -> list[str]:
    return ["".join(text for text, _ in line) for line in alert_lines(shown, width, SIGNS, height=height)]


def test_each_alert_has_its_fix_below_it() -> None:
    assert said(TWO) == [
        "W203: tensor-parallel all-gathers are exposed 18 % of the",
        "  step",
        "  fix: set x = true",
        "rank 0: something else",
    ]
    assert (said(frame()), alert_title(TWO)) == ([], "2 alerts")


def test_few_lines_keep_the_worst_whole_and_tell_of_the_rest() -> None:
    assert said(TWO, 80, 3) == [
        "W203: tensor-parallel all-gathers are exposed 18 % of the step",
        "  fix: set x = true",
        "rank 0: something else",
    ]
    three = frame(alerts=(*TWO.alerts, "rank 1: a third; fix: none"))
    assert said(three, 80, 3)[-1] == "rank 0: something else"
    assert said(three, 80, 4)[-1] == "… 1 more: a shows all"
    assert said(TWO, 60, 0) == []


def test_a_long_alert_gives_its_last_line_to_its_fix() -> None:
    assert said(TWO, 60, 2) == ["W203: tensor-parallel all-gathers are exposed 18 % of the …", "  fix: set x = true"]
    assert said(TWO, 60, 1) == ["W203: tensor-parallel all-gathers are exposed 18 % of the …"]
    long = frame(alerts=(f"{'word ' * 30}; fix: {'do ' * 40}",))
    assert [line[-1] for line in said(long, 40, 3)] == ["d", "…", "…"]
    assert said(long, 40, 3)[2].startswith("  fix: do do")


@pytest.mark.parametrize("width", [20, 36, 60])
@pytest.mark.parametrize(
    "word", ["/shared/" + "a-long-name/" * 12 + "step-00001000", "\N{CJK UNIFIED IDEOGRAPH-5931}" * 70]
)
def test_a_word_that_is_longer_than_a_line_is_there_in_full(word: str, width: int) -> None:
    lines = said(frame(alerts=(f"rank 0: {word} is gone; fix: set {word} = 1",)), width)
    assert "".join("".join(lines).split()).count(word) == 2
    assert max(cells(line) for line in lines) <= width


def test_a_message_without_an_end_leaves_its_fix_to_be_read() -> None:
    lines = said(frame(alerts=(f"W101: {'m' * 9000} end; fix: do this",)))
    assert (len(lines) < 50, lines[-2][-3:], lines[-1]) == (True, "end", "  fix: do this")


def test_errors_are_red_and_warnings_yellow() -> None:
    shown = frame(
        alerts=("W101: bad", "W203: doubtful", "rank 3 failed first: ValueError: x"),
        findings=({"rule": "W101", "severity": "error"}, {"rule": "W203", "severity": "warning"}),
    )
    assert [line[0][1] for line in alert_lines(shown, 60, SIGNS)] == ["red", "yellow", "red"]


def test_text_of_a_run_cannot_move_the_cursor_and_lines_stay_lines() -> None:
    assert said(frame(alerts=("a\x1b[2J\x07b\nsecond",))) == ["a\ufffd[2J\ufffdb", "  second"]


def test_long_words_and_long_texts_keep_to_the_width() -> None:
    told = said(frame(alerts=("x" * 300, "日" * 100)), 40)
    assert max(map(len, told)) <= 40
