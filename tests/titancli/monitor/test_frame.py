"""One look at a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from titancli.monitor.fold import fold
from titancli.monitor.follow import State
from titancli.monitor.frame import Frame, frame, planned_memory
from titancli.monitor.panels import curve, line, panels
from titancli.monitor.run_state import RunState

PLAN: dict[str, Any] = {
    "gpu": "h200",
    "world_size": 4,
    "stages": [
        {"memory": {"capacity_bytes": 100, "peak_bytes": 60}},
        {"memory": {"capacity_bytes": 100, "peak_bytes": None}},
    ],
}
KEYS = ["time", "run", "state", "step", "steps", "loss", "grad_norm", "tokens_per_s_per_gpu", "mfu_pct", "eta_s"]
RANK_KEYS = ["rank", "host", "gpu", "used_bytes", "capacity_bytes", "planned_bytes", "sm_pct", "link_pct"]
METER_KEYS = ["uuid", "tensor_pct", "dram_pct", "pcie_pct", "network_pct", "power_w", "cpu_pct", "reasons"]
PACE_KEYS = ["stage", "own_s", "behind_pct", "is_live"]


def look(*events: dict[str, Any], state: State = "running", now: float = 100.0, steps: object = 10) -> Frame:
    seen = fold(RunState(), [{"rank": 0, "time": 100.0, **event} for event in events])
    config = {"training": {"steps": steps}}
    return frame("x", seen, state, failure=seen.first_failure, config=config, plan=PLAN, now=now)


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": 2.0, "step_s": 3.0, **fields}


def drawn(shown: Frame) -> str:
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(panels(shown))
    console.file.close()
    return console.export_text()


def test_json_has_the_keys_of_the_contract_and_nulls_where_nothing_is_known() -> None:
    told = look().to_json()
    later = ["starts", "saved_step", "saved_s_ago", "lr", "time_s", "slowest", "findings"]
    assert list(told) == [*KEYS, "ranks", "alerts", *later]
    assert [told[key] for key in KEYS[3:]] == [None, 10, None, None, None, None, None]
    assert [list(row) for row in told["ranks"]] == [
        [*RANK_KEYS, "idle_pct", "idle", "exposed_comm_by_axis", *METER_KEYS, *PACE_KEYS]
    ] * 4
    assert {row["used_bytes"] for row in told["ranks"]} == {None}
    json.dumps(told, allow_nan=False)


def test_planned_memory_is_that_of_the_pipeline_stage() -> None:
    assert [row["planned_bytes"] for row in look().to_json()["ranks"]] == [60, 60, None, None]
    assert planned_memory(PLAN, 4) == planned_memory({}, 0) == planned_memory({"stages": [], "world_size": 2}, 0) == {}


def test_time_left_is_the_steps_left_at_the_median_pace() -> None:
    assert look(step(1, step_s=60.0), step(2), step(3, step_s=5.0), step(4)).eta_s == 6 * 3.0


@pytest.mark.parametrize("steps", [None, "many"])
def test_time_left_is_unknown_where_the_number_of_steps_is(steps: object) -> None:
    assert look(step(1), step(2), steps=steps).eta_s is None


def test_run_that_ended_has_no_time_left() -> None:
    assert look(step(1), step(2), state="failed").eta_s is None


def test_link_use_is_a_share_of_the_published_peak() -> None:
    shown = look({"kind": "gpu", "sm_pct": 80, "nvlink_rx_bytes_per_s": 45e9, "nvlink_tx_bytes_per_s": 90e9})
    assert shown.ranks[0]["link_pct"] == pytest.approx(20.0)
    assert shown.ranks[1]["link_pct"] is None


def test_rank_close_to_its_memory_raises_an_alert() -> None:
    assert look({"kind": "memory", "reserved_bytes": 95}).alerts == ("not heard of yet: rank 1-3",)
    assert "rank 0 uses 96 B of 100 B" in look({"kind": "memory", "reserved_bytes": 96}).alerts[0]


def test_silence_raises_an_alert_only_while_the_run_should_speak() -> None:
    assert not any("written" in alert for alert in look(step(5), now=190.0).alerts)
    assert any("written anything for 5 min" in alert for alert in look(step(5), now=400.0).alerts)
    assert not any("written" in alert for alert in look(step(5), now=400.0, state="finished").alerts)


def test_failure_is_the_first_alert() -> None:
    failure = {"rank": 0, "host": "a", "type": "ValueError", "message": "boom\nmore"}
    shown = look({"kind": "run_ended", "exit_code": 1, "reason": "x", "first_failure": failure}, state="failed")
    assert shown.alerts[0] == "rank 0 failed first: ValueError: boom"


def test_plain_line_says_all_and_invents_nothing() -> None:
    assert line(look()) == (
        "running  step n/a (none yet)  loss n/a  grad norm n/a  n/a tokens/s/GPU  memory n/a  left n/a"
    )
    told = line(look(step(1), step(2, tokens_per_s_per_gpu=1234.5), {"kind": "memory", "reserved_bytes": 2**30}))
    assert told == (
        "running  step 2 of 10  loss 2.0000  grad norm n/a  1,234 tokens/s/GPU  memory 1.0 GiB  left 24.0 s"
    )


def test_c45_panels_say_n_a_where_a_meter_is_missing() -> None:
    text = drawn(look(step(1)))
    row = next(each for each in text.splitlines() if each.split()[1:2] == ["0"])
    assert row.count("n/a") == 5
    assert " 0.0 %" not in text
    assert " 0 B" not in text


def test_processors_count_tokens_by_process_and_say_what_memory_holds() -> None:
    begun = {"kind": "run_started", "plan": {"gpu": "cpu"}}
    shown = look(begun, step(2, tokens_per_s_per_gpu=1234.5))
    assert "1,234 tokens/s/process" in line(shown)
    assert "tokens/s/process" in drawn(shown)
    words = " ".join(drawn(shown).replace("│", " ").split())
    assert "memory: of the whole process, Python and torch with it; planned: of the training in it" in words
    assert "whole process" not in drawn(look(step(2)))


def test_512_ranks_are_shown_by_the_fullest_16() -> None:
    events = [{"kind": "memory", "rank": rank, "reserved_bytes": rank} for rank in range(512)]
    text = drawn(look(*events))
    assert "the 16 fullest of 512 ranks" in text
    assert "511 B" in text
    assert "495 B" not in text


def test_text_of_a_run_is_never_read_as_markup() -> None:
    assert "[red]x[/nonsense]" in drawn(look({"kind": "warning", "message": "[red]x[/nonsense]"}))


@pytest.mark.parametrize(
    ("values", "bars"), [((), ""), ((2.0,), "▁"), ((1.0, 1.0), "▁▁"), ((8.0, 1.0), "█▁"), ((0.0, 7.0, 14.0), "▁▅█")]
)
def test_curve_spans_lowest_to_highest(values: tuple[float, ...], bars: str) -> None:
    assert curve(values) == bars


def test_many_ranks_close_to_their_memory_are_one_alert() -> None:
    shown = look(*({"kind": "memory", "rank": rank, "reserved_bytes": 96 + rank % 4, "ooms": 1} for rank in range(4)))
    assert shown.alerts == (
        "ranks 0-3 use up to 99 B of 100 B: close to out of memory",
        "ranks 0-3 ran out of memory 1 times",
    )


def test_text_of_a_run_cannot_move_the_cursor() -> None:
    text = drawn(look({"kind": "warning", "message": "\x1b[2J\x07gone"}))
    assert "\x1b[2J" not in text
    assert "\ufffd[2J\ufffdgone" in text


def test_alerts_stand_where_a_low_terminal_still_shows_them() -> None:
    text = drawn(look({"kind": "warning", "message": "hot"}, *(step(number) for number in range(1, 4))))
    assert text.index("rank 0: hot") < text.index("─ ranks ─")
    assert next(number for number, line in enumerate(text.splitlines()) if "rank 0: hot" in line) < 15


def saved(state: str, number: int, time: float = 40.0) -> dict[str, Any]:
    return {"kind": "checkpoint", "time": time, "step": number, "state": state}


def test_newest_checkpoint_is_shown_with_its_age() -> None:
    shown = look(saved("committed", 4), step(5), saved("begun", 6), now=100.0)
    assert (shown.to_json()["saved_step"], shown.to_json()["saved_s_ago"]) == (4, 60.0)
    text = drawn(shown)
    assert "step 4, 1 min 00 s ago" in text
    assert "saving" in text


def test_checkpoint_that_the_end_of_a_run_cut_off_is_said_so() -> None:
    assert "step 6, and has not come to its end" in drawn(look(saved("begun", 6), state="failed"))


def test_checkpoint_that_could_not_be_saved_is_an_alert() -> None:
    shown = look(saved("committed", 4), saved("begun", 6), saved("failed", 6))
    assert "the checkpoint of step 6 could not be saved: the newest kept is that of step 4" in shown.alerts


def test_run_that_was_started_again_says_how_often_and_after_which_step() -> None:
    begin = {"kind": "phase", "name": "build", "state": "begin"}
    text = drawn(look(begin, {**begin, "time": 110.0}, {"kind": "run_started", "time": 111.0, "resumed_from": 4}))
    assert "2 times, the last time after step 4" in text


def test_run_that_keeps_nothing_and_began_once_has_no_such_rows() -> None:
    text = drawn(look(step(1)))
    assert not any(word in text for word in ("last save", "saving", "started"))
