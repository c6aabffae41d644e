"""The table of ranks: order, columns, sums, and the rows that have room."""

from __future__ import annotations

from typing import Any

import pytest
from frames import GIB, busy, failed, frame, row, training

from titancli.monitor.frame import Frame
from titancli.monitor.screen.panels_columns import most_idle, over_plan_pct
from titancli.monitor.screen.panels_ink import SIGNS
from titancli.monitor.screen.panels_ranks import Order, ordered, rank_table, wanted_lines

EIGHT = training([busy(rank) for rank in range(8)])
MANY = training([busy(rank, behind_pct=rank % 7 - 3.0) for rank in range(512)])


def said(shown: Frame, width: int = 116, height: int | None = None, **how: Any) -> list[str]:
    return [
        "".join(text for text, _ in line).rstrip()
        for line in rank_table(shown, width, SIGNS, height=height, **how).lines
    ]


def numbers(shown: Frame, order: Order, *, is_reversed: bool = False) -> list[int]:
    return [row["rank"] for row in ordered(shown, order, is_reversed=is_reversed)]


def test_columns_that_matter_most_come_first_into_few_columns() -> None:
    heads = {width: said(EIGHT, width)[0].split() for width in (60, 80, 116, 196)}
    assert heads[60] == ["rank", "memory", "full", "to", "plan", "SM", "behind", "idle"]
    assert heads[80] == ["rank", "memory", "full", "to", "plan", "SM", "tensor", "NVLink", "behind", "idle"]
    assert set(heads[116]) >= {"tensor", "DRAM", "NVLink", "PCIe", "net", "behind", "idle", "most"}
    assert set(heads[196]) >= {"stage", "host", "device", "planned", "power", "CPU", "own"}


def test_a_row_tells_memory_meters_and_idle_time() -> None:
    assert said(EIGHT, 116)[4] == (
        "    0   64.0 GiB  80.0 %    +3.2 %   90 %    50 %   60 %    20 %    2 %    4 %   +0.0 %  40.0 %  bubble 15.0 %"
    )


def test_sums_are_the_largest_the_middle_and_the_smallest_of_all_ranks() -> None:
    rows = [busy(rank, used_bytes=(10 + rank) * GIB, planned_bytes=None) for rank in range(8)]
    table = said(training(rows), 60, 12)
    assert [line.split()[:2] for line in table[1:4]] == [["max", "17.0"], ["med", "13.5"], ["min", "10.0"]]
    assert [line.split()[0] for line in said(training(rows), 60, 8)[1:3]] == ["med", "0"]
    assert said(training(rows), 60, 5)[1].split()[0] == "0"
    assert said(training(rows[:3]), 60)[1].split()[0] == "0"


def test_a_page_of_many_ranks_begins_where_it_is_told_and_ends_with_the_last() -> None:
    table = rank_table(MANY, 116, SIGNS, height=20, top=100, order="rank")
    assert (table.first, table.last, table.count, len(table.lines)) == (100, 116, 512, 20)
    assert "".join(text for text, _ in table.lines[4]).split()[0] == "100"
    last = rank_table(MANY, 116, SIGNS, height=20, top=10_000, order="rank")
    assert (last.first, last.last) == (496, 512)


@pytest.mark.parametrize(("height", "shown"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_little_room_is_kept_to(height: int, shown: int) -> None:
    table = rank_table(MANY, 60, SIGNS, height=height)
    assert (len(table.lines), table.shown) == (height, shown)


def test_worst_are_those_that_failed_then_what_is_furthest_from_well() -> None:
    rows = [
        busy(0),
        busy(1, behind_pct=12.0),
        busy(2, used_bytes=79 * GIB, planned_bytes=79 * GIB),
        busy(3, idle_pct=75.0),
        busy(4, used_bytes=64 * GIB, planned_bytes=40 * GIB),
        busy(5),
        row(6),
    ]
    ranks = {number: failed(5) if number == 5 else failed(number).__class__(rank=number) for number in range(6)}
    shown = training(rows, seen={"ranks": ranks})
    assert numbers(shown, "worst") == [5, 6, 4, 3, 1, 2, 0]


def test_orders() -> None:
    rows = [busy(0, idle_pct=None), busy(1, idle_pct=50.0, behind_pct=2.0), busy(2, idle_pct=60.0, used_bytes=70 * GIB)]
    shown = training(rows)
    assert numbers(shown, "rank") == [0, 1, 2]
    assert numbers(shown, "memory") == [2, 0, 1]
    assert numbers(shown, "idle") == [2, 1, 0]
    assert numbers(shown, "behind") == [1, 0, 2]
    assert numbers(shown, "rank", is_reversed=True) == [2, 1, 0]


def test_c45_a_meter_that_is_missing_everywhere_is_named_with_its_reason() -> None:
    reasons = {"tensor_pct": "not supported", "dram_pct": "not supported", "link_pct": "no such link"}
    missing = {"tensor_pct": None, "dram_pct": None, "link_pct": None, "idle_pct": None, "behind_pct": None}
    table = said(training([busy(0, **missing, idle=None, reasons=reasons)]), 116)
    assert table[-3:] == [
        "idle, behind: n/a (no step is profiled yet)",
        "NVLink: n/a (no such link)",
        "tensor, DRAM: n/a (not supported)",
    ]
    assert not {"tensor", "DRAM", "NVLink", "idle"} & set(table[0].split())


def test_memory_is_compared_with_what_the_allocator_was_planned_to_hold() -> None:
    assert over_plan_pct(busy(0)) == pytest.approx(100 * 2 / 62)
    assert over_plan_pct(busy(0, planned_reserved_bytes=80 * GIB)) == pytest.approx(-20.0)
    assert over_plan_pct(row(0, used_bytes=1)) is None


def test_a_rank_alone_in_its_stage_is_behind_nobody() -> None:
    table = said(training([busy(0, behind_pct=None)]), 116)
    assert table[-1] == "behind: n/a (no other rank of a stage to compare with)"


def test_ranks_are_not_compared_by_profiles_of_an_attempt_before() -> None:
    table = said(training([busy(rank, behind_pct=None) for rank in range(2)]), 116)
    assert table[-1] == "behind: n/a (no step is profiled since the run was started again)"


def test_c45_a_meter_that_is_missing_of_one_rank_is_n_a_there() -> None:
    table = said(training([busy(0), busy(1, sm_pct=None)]), 60, order="rank")
    assert table[1].split()[7] == "90"
    assert table[2].split()[7] == "n/a"


def test_c45_a_meter_that_is_missing_of_some_ranks_has_its_reason_below() -> None:
    refused = {"used_bytes": None, "sm_pct": None, "reasons": {"used_bytes": "permission", "sm_pct": "not supported"}}
    assert said(training([busy(0, **refused), busy(1)]), 116)[-2:] == [
        "memory of rank 0: n/a (permission)",
        "SM of rank 0: n/a (not supported)",
    ]
    assert said(training([*(busy(rank, **refused) for rank in range(12)), busy(12)]), 116, height=30)[-2:] == [
        "memory of 12 ranks: n/a (permission)",
        "SM of 12 ranks: n/a (not supported)",
    ]


def test_rank_that_was_not_heard_of_has_a_row_without_figures() -> None:
    table = said(frame([row(0), row(1)], heard=False), 116)
    assert table[:3] == [" rank", "    0", "    1"]
    assert all("n/a (" in line for line in table[3:])


def test_rank_that_failed_is_marked() -> None:
    shown = training([busy(0), busy(1)], seen={"ranks": {1: failed(1)}})
    assert [line.split()[0] for line in said(shown, 60)[1:3]] == ["0", "!1"] or said(shown, 60)[1].split()[0] == "!1"


def test_processors_have_their_own_columns_and_it_is_said_what_memory_means() -> None:
    rows = [row(0, used_bytes=GIB, capacity_bytes=8 * GIB, planned_bytes=GIB // 4, cpu_pct=99.0)]
    table = said(training(rows, seen={"plan": {"gpu": "cpu"}}), 76)
    assert table[0].split() == ["rank", "memory", "full", "of", "planned", "CPU"]
    assert "memory: of the whole process, Python and torch with it; planned: of the training in it" in " ".join(
        " ".join(table).split()
    )
    assert not any(word in " ".join(table) for word in ("SM", "NVLink", "to plan"))


def test_most_of_idle_time_is_named_by_its_axis() -> None:
    assert most_idle(busy(0)) == "bubble 15.0 %"
    assert most_idle(busy(0, idle={"exposed_comm": 15.0}, exposed_comm_by_axis={"tp": 12.0, "cp": 3.0})) == "tp 12.0 %"
    assert most_idle(busy(0, idle={"exposed_comm": 15.0}, exposed_comm_by_axis=None)) == "comm 15.0 %"
    assert most_idle(row(0)) == ""


def test_lines_that_a_table_wants_are_those_it_takes() -> None:
    for shown in (EIGHT, MANY, training([busy(0)])):
        assert wanted_lines(shown, 116) == len(said(shown, 116))


def test_a_name_of_a_host_cannot_move_the_cursor() -> None:
    table = said(training([busy(0, host="a\x1b[2J")]), 196)
    assert "\x1b" not in "".join(table)
