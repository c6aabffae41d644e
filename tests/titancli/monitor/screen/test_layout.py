"""Where panels stand, at every size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titancli.monitor.screen.layout import Needs, Places, arranged, frames_of, inner_width

FULL = Needs(run=10, run_short=6, step=9, alerts=8, ranks=520)


def used(places: Places) -> int:
    upper = (places.outer("run"), places.outer("step"))
    return (max(upper) if places.is_wide else sum(upper)) + places.outer("alerts") + places.outer("ranks")


@settings(max_examples=300)
@given(
    st.integers(1, 300),
    st.integers(1, 100),
    st.integers(3, 12),
    st.integers(0, 12),
    st.integers(0, 60),
    st.integers(1, 520),
)
def test_panels_never_take_more_lines_than_there_are(
    columns: int, rows: int, run: int, step: int, alerts: int, ranks: int
) -> None:
    needs = Needs(run=run, run_short=max(3, run - 3), step=step, alerts=alerts, ranks=ranks)
    places = arranged(columns, rows, needs)
    assert used(places) <= rows
    assert places.step <= step
    assert places.alerts <= alerts
    assert places.ranks <= ranks


@pytest.mark.parametrize(("columns", "rows"), [(60, 14), (80, 23), (120, 39), (200, 59)])
def test_from_60_by_15_on_every_panel_has_its_place(columns: int, rows: int) -> None:
    places = arranged(columns, rows, FULL)
    assert min(places.run, places.step, places.alerts, places.ranks) > 0
    assert used(places) == rows


def test_what_matters_most_is_what_a_low_screen_keeps() -> None:
    kept = [
        [name for name in ("run", "alerts", "ranks", "step") if getattr(arranged(60, rows, FULL), name)]
        for rows in (3, 6, 10, 12)
    ]
    assert kept == [["run"], ["run", "alerts"], ["run", "alerts", "ranks"], ["run", "alerts", "ranks", "step"]]


def test_a_run_without_alerts_gives_their_lines_to_others() -> None:
    calm = Needs(run=10, run_short=6, step=9, alerts=0, ranks=520)
    assert arranged(80, 23, calm).alerts == 0
    assert arranged(80, 23, calm).step > arranged(80, 23, FULL).step


def test_larger_screens_have_boxes_and_wide_ones_two_panels_beside_each_other() -> None:
    assert [frames_of(*size) for size in ((60, 15), (80, 23), (100, 39))] == ["bare", "ruled", "boxed"]
    assert [arranged(columns, 39, FULL).is_wide for columns in (100, 120)] == [False, True]
    assert inner_width(120, 39, is_half=True) == 56
    assert inner_width(120, 39) == 116
    assert inner_width(60, 15) == 60
