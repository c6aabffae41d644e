"""Where the seconds of a step go."""

from __future__ import annotations

from typing import Any

import pytest
from frames import TIME_S, frame

from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_ink import ASCII, SIGNS, Ink
from titancli.monitor.screen.panels_step import parts_of, step_lines, step_title

UNKNOWN = {
    "step": 2.0,
    "compute": None,
    "data": 0.01,
    "host": None,
    "bubble": None,
    "other": None,
    "exposed_comm": None,
}


def said(shown: Frame, width: int = 76, height: int | None = None, ink: Ink = SIGNS) -> list[str]:
    return ["".join(text for text, _ in line) for line in step_lines(shown, width, ink, height=height)]


def of(measured: Any = None, planned: Any = None) -> Frame:
    return frame(time_s={"measured": measured, "planned": planned})


BOTH = frame(time_s=TIME_S)


def test_measured_stands_beside_planned_part_by_part() -> None:
    assert said(BOTH) == [
        "              measured                           planned",
        "compute       █████████████████   1.20 s 60.0 %  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   1.20 s",
        "data wait     ▎                  20.0 ms  1.0 %                         n/a",
        "slow host     █▍                  0.10 s  5.0 %                         n/a",
        "exposed PP                        0.0 ms  0.0 %  ▒                  10.0 ms",
        "exposed FSDP  █▍                  0.10 s  5.0 %  ▒▒                  0.10 s",
        "exposed TP    ██▉                 0.20 s 10.0 %  ▒                  40.0 ms",
        "bubble        ████▎               0.30 s 15.0 %  ▒▒▒▒                0.25 s",
        "other         █▏                 80.0 ms  4.0 %                         n/a",
    ]


def test_title_tells_both_times() -> None:
    assert step_title(BOTH) == "where a step goes: 2.00 s, planned 1.60 s"
    assert step_title(of(planned=TIME_S["planned"])) == "where a step goes: planned 1.60 s"
    assert step_title(of()) == "where a step goes"


def test_few_columns_keep_planned_seconds_without_their_bars() -> None:
    told = said(BOTH, 48)
    assert told[1] == "compute       ███████   1.20 s 60.0 %     1.20 s"
    assert max(map(len, told)) <= 48


def test_few_lines_keep_the_largest_parts_in_their_order() -> None:
    told = said(BOTH, 76, 4)
    assert [line.split()[0] for line in told] == ["3", "compute", "exposed", "bubble"]
    assert told[0].startswith("3 of 8 parts  measured")


def test_one_line_tells_shares_the_largest_first() -> None:
    assert said(BOTH, 60, 1) == ["time compute 60 %  bubble 15 %  tp 10 %  host 5 %  "]
    assert said(of(planned=TIME_S["planned"]), 60, 1)[0].startswith("planned compute 75 %  bubble 16 %")


def test_before_a_step_is_profiled_the_plan_stands_alone_and_it_is_said_so() -> None:
    told = said(of(UNKNOWN, TIME_S["planned"]))
    assert told[1].split() == ["compute", "n/a", "▒" * 17, "1.20", "s"]
    assert told[-1] == "measured: n/a until a step is profiled, as metrics.breakdown_freq says"


@pytest.mark.parametrize("nothing", [of(), of({}, {}), of(dict.fromkeys(UNKNOWN), None)])
def test_nothing_known_is_said_in_words(nothing: Frame) -> None:
    assert said(nothing) == ["no step was profiled yet, and none is planned in seconds"]


def test_a_run_without_a_planned_time_has_one_column_of_bars() -> None:
    told = said(of(TIME_S["measured"]))
    assert told[0].split() == ["measured"]
    assert told[1].startswith("compute       " + "█" * 40)


def test_axis_of_a_newer_engine_is_named_as_it_is() -> None:
    shown = of({**TIME_S["measured"], "exposed_comm": {"ep": 0.5, "world": 0.1}})
    assert [part.name for part in parts_of(shown)][3:5] == ["exposed ep", "exposed world"]


def test_part_that_would_be_written_as_nothing_is_left_out() -> None:
    shown = of({**TIME_S["measured"], "data": 4e-5, "exposed_comm": {"world": 1e-6}})
    assert [part.short for part in parts_of(shown)] == ["compute", "host", "bubble", "other"]


def test_ascii_tells_measured_from_planned() -> None:
    told = said(BOTH, ink=ASCII)
    assert all(line.isascii() for line in told)
    assert told[1].split()[1][0] == "#"
    assert told[1].split()[6][0] == "="


@pytest.mark.parametrize(("width", "height"), [(1, 1), (10, 3), (40, 2), (56, 9), (76, 30)])
def test_it_keeps_to_its_room(width: int, height: int) -> None:
    told = said(BOTH, width, height)
    assert len(told) <= height
    assert max(map(len, told)) <= width
