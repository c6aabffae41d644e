"""A run folder, read once: over, cut off, half written, or of many ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import TitanError
from engine.events import EventLog, event_file
from titancli.compare import reading
from titancli.compare.reading import read_run
from titancli.monitor.follow import Launcher

MakeRun = Callable[..., Path]
GIB = 1 << 30
PROFILED = {"compute_s": 1.0, "exposed_comm_s": {"tp": 0.5}, "bubble_s": 0.0, "data_s": 0.0, "host_s": 0.1}


def test_finished_run_tells_of_itself(make_run: MakeRun) -> None:
    run = read_run(make_run("a", [3.0, 2.0, 1.0], gpu="h200"))
    assert (run.state, run.step, run.steps, run.world_size, run.gpu) == ("finished", 3, 3, 2, "h200")
    assert (run.versions, run.failure) == ({"torch": "2.13.0"}, None)
    assert run.curve.losses == (3.0, 2.0, 1.0)


def test_memory_is_that_of_the_fullest_rank_beside_its_plan(make_run: MakeRun) -> None:
    folder = make_run("a", [1.0], gpu="h200")
    EventLog(folder, 1).write("memory", reserved_bytes=GIB, peak_reserved_bytes=7 * GIB)
    held = read_run(folder).held
    assert held is not None
    assert (held.rank, held.kind, held.peak_bytes, held.planned_bytes) == (1, "allocator", 7 * GIB, 5 * GIB)
    assert held.of_plan == pytest.approx(1.4)


def test_memory_of_a_process_has_no_plan(make_run: MakeRun) -> None:
    held = read_run(make_run("a", [1.0])).held
    assert held is not None
    assert (held.kind, held.peak_bytes, held.planned_bytes, held.of_plan) == ("process", GIB, None, None)


def test_failed_run_says_who_failed(make_run: MakeRun) -> None:
    failure = {"rank": 1, "host": "h", "type": "ValueError", "message": "boom\nmore"}
    run = read_run(make_run("a", [1.0], steps=9, ended={"reason": "x", "exit_code": 1, "first_failure": failure}))
    assert (run.state, run.failure, run.step, run.steps) == ("failed", "rank 1: ValueError: boom", 1, 9)


def test_run_that_has_only_a_config_has_no_curve(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("not toml = = =", "utf-8")
    run = read_run(tmp_path)
    assert (run.state, run.step, run.steps, run.held, run.idle, run.config) == ("starting", None, None, None, None, {})


def test_damaged_and_torn_lines_are_passed_over(make_run: MakeRun) -> None:
    folder = make_run("a", [3.0, 2.0])
    with event_file(folder, 0).open("ab") as file:
        file.write(b'{"kind":"step","step":3,"lo\n\xff\xfe\x00\n[1]\n{"kind":"step","step":"x"}\n{"kind":"step","st')
    assert read_run(folder).curve.steps == (1, 2)


def test_resumed_run_is_still_going_on_after_the_end_of_an_attempt(make_run: MakeRun) -> None:
    make_run("a", [4.0, 3.0], ended={"reason": "terminated", "exit_code": 143, "first_failure": None}, steps=4)
    folder = make_run("a", [2.5, 2.0], resumed_from=1, ended={}, steps=4)
    Launcher.this_process().write(folder)
    run = read_run(folder)
    assert (run.state, run.curve.steps, run.curve.losses) == ("running", (1, 2, 3), (4.0, 2.5, 2.0))
    assert (run.curve.redone, run.curve.attempts) == (1, 2)


def test_idle_is_the_mean_of_ranks_that_were_profiled_once_warm(make_run: MakeRun) -> None:
    folder = make_run("a", [3.0, 2.0, 1.0], world_size=1, idle=PROFILED, step_s=2.0)
    other = EventLog(folder, 1)
    other.write("step", step=1, step_s=2.0, breakdown=PROFILED)
    other.write("step", step=2, step_s=2.0, breakdown=PROFILED | {"compute_s": 0.5})
    idle = read_run(folder).idle
    assert idle is not None
    assert idle["compute"] == pytest.approx(37.5)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_events_that_may_not_be_read_are_told(make_run: MakeRun) -> None:
    folder = make_run("a", [1.0])
    event_file(folder, 0).chmod(0)
    with pytest.raises(TitanError, match="U170"):
        read_run(folder)


def test_folder_in_place_of_events_is_told(make_run: MakeRun) -> None:
    folder = make_run("a", [1.0])
    event_file(folder, 0).unlink()
    event_file(folder, 0).mkdir()
    with pytest.raises(TitanError, match=r"U170.*is a directory"):
        read_run(folder)


def test_of_other_ranks_only_the_ends_are_read(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("a", [1.0])
    seen: list[str] = []
    all_but = reading.read_all_but
    monkeypatch.setattr(reading, "read_all_but", lambda path, *kinds: seen.append(path.name) or all_but(path, *kinds))
    read_run(folder)
    assert seen == ["rank-00000.jsonl"]
