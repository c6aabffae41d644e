"""The run: how far, how well, how fast against the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frames import GIB, busy, frame, row, training

from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_ink import SIGNS
from titancli.monitor.screen.panels_run import headline, progress, run_lines, short_lines

ROWS = [busy(rank) for rank in range(4)]


def said(shown: Frame, width: int = 76, height: int | None = None) -> list[str]:
    return ["".join(text for text, _ in line) for line in run_lines(shown, width, SIGNS, height=height)]


def fact(shown: Frame, label: str) -> str:
    """What is said of one thing; empty where it is not."""
    found = [line[10:].rstrip() for line in said(shown) if line.startswith(f"{label} ")]
    return found[0] if found else ""


def saw(**seen: Any) -> Frame:
    return training(ROWS, seen=seen)


def test_everything_that_is_known_has_a_line() -> None:
    told = said(training(ROWS))
    assert told[0].startswith("step      1,234 of 5,000  ━━━")
    assert told[0].endswith(" 25 %  left 2 h 05 min")
    assert told[1].startswith("loss      2.3456  █")
    assert told[2:] == [
        "speed     10,000 tokens/s/GPU  plan 12,500, -20.0 %",
        "MFU       41.2 %  plan 51.5 %",
        "grad norm 0.9000",
        "memory    64.0 of 80.0 GiB, 80 %, rank 0  plan 62.0 GiB",
        "slowest   rank 5, 7.2 % behind others of its stage",
        "step time 2.00 s  plan 1.60 s, +25.0 %",
        "lr        3.00e-04",
    ]


def test_nothing_is_invented_where_nothing_is_known() -> None:
    told = said(frame())
    assert told[:5] == [
        "step      n/a (none yet)",
        "loss      n/a  ",
        "speed     n/a tokens/s/GPU",
        "MFU       n/a",
        "grad norm n/a",
    ]
    assert not any(figure in " ".join(told) for figure in ("0.0", " 0 ", "%"))


def test_before_the_first_step_its_phase_is_told() -> None:
    assert progress(frame(seen={"phase": "build"})) == "n/a (build)"
    assert headline(frame(seen={"phase": "build"}, state="starting"), SIGNS) == "demo · starting · build"
    assert headline(training(ROWS, seen={"phase": "train"}), SIGNS) == "demo · running"
    assert headline(frame(seen={"phase": "save"}, state="failed"), SIGNS) == "demo · failed"


def test_steps_without_an_end_are_counted() -> None:
    assert progress(frame(seen={"step": 1234}, steps=None)) == "1,234"
    assert said(frame(seen={"step": 1234}, steps=None))[0] == "step      1,234"


def test_a_run_that_has_ended_has_no_time_left() -> None:
    assert "left" not in said(replace(training(ROWS), state="finished"))[0]


@pytest.mark.parametrize(("width", "height"), [(56, 4), (60, 5), (76, 6), (30, 3), (20, 12), (116, 20), (5, 2), (1, 1)])
def test_it_keeps_to_its_room(width: int, height: int) -> None:
    told = said(training(ROWS), width, height)
    assert len(told) <= height
    assert max(map(len, told)) <= width


def test_several_facts_share_a_line_where_lines_are_few() -> None:
    told = said(training(ROWS), 60, 5)
    assert told[2:4] == [
        "speed 10,000 tokens/s/GPU, -20.0 % of plan   MFU 41.2 %",
        "grad norm 0.9000   memory 64.0 GiB, 80 %, rank 0",
    ]
    assert short_lines(training(ROWS), 60, SIGNS) == 6


def test_spare_lines_make_the_curve_taller() -> None:
    whole = len(said(training(ROWS)))
    told = said(training(ROWS), 76, whole + 5)
    assert len(told) == whole + 5
    assert sum("█" in line for line in told) == 6


def test_processors_count_tokens_by_process_and_have_no_mfu() -> None:
    shown = saw(plan={"gpu": "cpu"}, mfu_pct=None)
    assert fact(shown, "speed") == "10,000 tokens/s/process"
    assert fact(shown, "MFU") == "n/a (a CPU has no peak rate here)"


def test_the_fullest_rank_is_the_one_closest_to_its_limit() -> None:
    rows = [busy(0, used_bytes=70 * GIB), busy(1, used_bytes=39 * GIB, capacity_bytes=40 * GIB), row(2)]
    assert fact(training(rows), "memory").startswith("39.0 of 40.0 GiB, 98 %, rank 1")
    assert (
        fact(training([busy(0, used_bytes=512 << 20, planned_bytes=None)]), "memory")
        == "512 MiB of 80.0 GiB, 1 %, rank 0"
    )
    assert fact(training([row(0, used_bytes=3 * GIB)]), "memory") == "3.0 GiB, rank 0"


def test_newest_checkpoint_is_shown_with_its_age() -> None:
    assert fact(saw(saved_step=4, saved_time=940.0), "last save") == "step 4, 1 min 00 s ago"
    assert fact(saw(saving_step=6), "saving") == "step 6"


def test_newest_validation_is_shown_with_its_step() -> None:
    assert fact(saw(validation_step=1200, validation_loss=2.5), "val loss") == "2.5000 after step 1,200"


def test_checkpoint_that_the_end_of_a_run_cut_off_is_said_so() -> None:
    shown = replace(saw(saving_step=6), state="failed")
    assert fact(shown, "saving") == "step 6, and has not come to its end"


def test_run_that_was_started_again_says_how_often_and_after_which_step() -> None:
    assert fact(saw(starts=2, resumed_step=4), "started") == "2 times, the last time after step 4"
    assert fact(saw(starts=2), "started") == "2 times"


def test_run_that_keeps_nothing_and_began_once_has_no_such_lines() -> None:
    assert [fact(saw(starts=1), label) for label in ("last save", "saving", "started")] == ["", "", ""]


def test_a_name_cannot_move_the_cursor() -> None:
    assert headline(replace(frame(), run="a\x1b[2Jb"), SIGNS) == "a\ufffd[2Jb · running"
