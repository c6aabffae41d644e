"""Files of events, however long."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from titancli.monitor import reading
from titancli.monitor.reading import Reader


def write(path: Path, *events: dict[str, Any], mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    return path


def step(number: int, *, profiled: bool = False, filler: int = 200) -> dict[str, Any]:
    breakdown = {"compute_s": 0.5 if profiled else None, "profiled_s": 0.6 if profiled else None}
    return {"kind": "step", "rank": 0, "step": number, "breakdown": breakdown, "filler": "x" * filler}


def report(number: int, **more: Any) -> list[dict[str, Any]]:
    memory = {"kind": "memory", "rank": 0, "active_bytes": number, "filler": "x" * 100}
    return [memory, {"kind": "gpu", "rank": 0, "filler": "x" * 300}, step(number, **more)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are long from 64 KiB on, so that a test need not write megabytes."""
    for name, size in (("LONG_BYTES", 64 << 10), ("_HEAD_BYTES", 8 << 10), ("_TAIL_BYTES", 16 << 10)):
        monkeypatch.setattr(reading, name, size)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 5_000)
    monkeypatch.setattr(reading, "_STEPS_BETWEEN", 20)


def test_reader_goes_on_where_it_stopped_and_waits_for_a_torn_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a", step(1), step(2))
    reader = Reader(path, is_whole=True)
    assert [event["step"] for event in reader] == [1, 2]
    write(path, step(3), mode="a")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind":"step","st')
    reader = Reader(path, reader.offset, is_whole=True)
    assert [event["step"] for event in reader] == [3]
    with path.open("a", encoding="utf-8") as file:
        file.write('ep":4}\nnot json\n')
    assert [event["step"] for event in Reader(path, reader.offset, is_whole=True)] == [4]


def test_file_that_is_not_there_or_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    assert [*Reader(tmp_path / "none", is_whole=True)] == []
    path = write(tmp_path / "a", step(1), step(2))
    reader = Reader(path, is_whole=True)
    assert len([*reader]) == 2
    write(path, step(7, filler=5))
    assert [event["step"] for event in Reader(path, reader.offset, is_whole=True)] == [7]


@pytest.mark.usefixtures("small")
def test_lines_longer_than_a_piece_are_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a", step(1, filler=12_000), step(2))
    assert [event["step"] for event in Reader(path, is_whole=True)] == [1, 2]


@pytest.mark.usefixtures("small")
def test_long_file_is_thinned_in_its_middle_and_loses_nothing_rare(tmp_path: Path) -> None:
    begins = {"kind": "phase", "rank": 0, "name": "build", "state": "begin"}
    events = [event for number in range(1, 201) for event in report(number, profiled=number == 150)]
    again = [begins, *(event for number in range(101, 301) for event in report(number))]
    path = write(tmp_path / "a", *events, *again)
    reader = Reader(path, is_whole=True)
    found = [*reader]
    steps = [event["step"] for event in found if event["kind"] == "step"]
    assert reader.offset == path.stat().st_size
    assert len(found) < 200
    assert (steps[:3], steps[-3:]) == ([1, 2, 3], [298, 299, 300])
    assert [event["step"] for event in found if (event.get("breakdown") or {}).get("profiled_s")] == [150]
    at = found.index(begins)
    assert next(event["step"] for event in found[at:] if event["kind"] == "step") == 101
    apart = [after - before for before, after in pairwise(steps) if after > before]
    assert max(apart) < 30


def test_of_another_rank_the_ends_and_the_newest_profiles_are_read(tmp_path: Path) -> None:
    started = {"kind": "run_started", "rank": 0}
    reports = [event for number in range(1, 401) for event in report(number, profiled=number in (100, 250, 300))]
    path = write(tmp_path / "a", started, *reports)
    reader = Reader(path, is_whole=False)
    found = [*reader]
    steps = [event["step"] for event in found if event["kind"] == "step"]
    assert (found[0], found[-1]["step"], reader.offset) == (started, 400, path.stat().st_size)
    assert [number for number in steps if 50 < number < 350] == [250, 300]
    assert len(found) < 100


def test_of_many_files_less_is_searched_than_of_few(tmp_path: Path) -> None:
    reports = [event for number in range(1, 1001) for event in report(number, profiled=number == 10)]
    path = write(tmp_path / "a", *reports)
    assert any(event.get("step") == 10 for event in Reader(path, is_whole=False, of_files=8))
    assert not any(event.get("step") == 10 for event in Reader(path, is_whole=False, of_files=512))


def test_another_rank_that_goes_on_is_read_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *(event for number in range(100) for event in report(number)))
    reader = Reader(path, is_whole=False)
    assert [*reader]
    write(path, step(500), mode="a")
    assert [event["step"] for event in Reader(path, reader.offset, is_whole=False)] == [500]


def test_last_line_of_another_rank_is_read_however_long_it_is(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a", *(event for number in range(100) for event in report(number)), step(200, filler=99_999)
    )
    assert [*Reader(path, is_whole=False)][-1]["step"] == 200
