"""Events survive kills, other writers and replays; a reader sees each once, whole, or not yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.events import EVERY_EVENT, FIELDS, EventLog, event_file, missing_fields, read_all_but, read_ends, read_new

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path):
    log = EventLog(tmp_path, 7)
    yield log
    log.close()


def test_a_rank_writes_to_the_file_that_the_contract_names(tmp_path, log):
    log.write("warning", message="hot")
    assert (tmp_path / "events" / "rank-00007.jsonl").read_bytes().count(b"\n") == 1


def test_every_event_has_version_time_rank_and_kind(tmp_path, log):
    before = time.time()
    log.write("warning", message="hot")
    ((event,), _) = read_new(event_file(tmp_path, 7))
    assert (event["v"], event["rank"], event["kind"]) == (1, 7, "warning")
    assert before <= event["time"] <= time.time()


@pytest.mark.parametrize("kind", FIELDS)
def test_an_event_lacks_exactly_the_promised_fields_it_was_not_given(kind, tmp_path, log):
    log.write(kind)
    log.write(kind, **dict.fromkeys(FIELDS[kind]))
    (bare, full), _ = read_new(event_file(tmp_path, 7))
    assert missing_fields(bare) == FIELDS[kind]
    assert missing_fields(full) == ()


def test_only_rank_0_owes_the_plan(tmp_path):
    events = []
    for rank in (0, 1):
        log = EventLog(tmp_path, rank)
        log.write("run_started", **dict.fromkeys(FIELDS["run_started"]))
        log.close()
        events += read_new(event_file(tmp_path, rank))[0]
    assert [missing_fields(event) for event in events] == [("plan",), ()]


def test_an_event_of_a_newer_engine_lacks_nothing():
    assert missing_fields({**dict.fromkeys(EVERY_EVENT), "kind": "solar_flare"}) == ()


@pytest.mark.parametrize("field", EVERY_EVENT[:3])
def test_a_field_of_the_log_cannot_be_written_by_the_caller(field, log):
    with pytest.raises(AssertionError):
        log.write("warning", message="hot", **{field: 3})


def test_figures_that_are_not_finite_are_null_at_any_depth(tmp_path, log):
    log.write("step", loss=float("nan"), breakdown={"data_s": float("inf"), "by": (1.5, float("-inf"))})
    line = event_file(tmp_path, 7).read_text()
    event = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (event["loss"], event["breakdown"]) == (None, {"data_s": None, "by": [1.5, None]})


def test_an_event_is_one_append(tmp_path, log, monkeypatch):
    sizes = []
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: sizes.append(len(data)) or whole_write(file, data))
    log.write("warning", message="x" * 100_000)
    assert sizes == [event_file(tmp_path, 7).stat().st_size]


def test_what_a_full_disk_left_unwritten_spoils_only_its_own_event(tmp_path, log, monkeypatch):
    whole_write = os.write
    room = [40]

    def write(file, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = whole_write(file, data[: room[0]])
        room[0] -= written
        return written

    log.write("warning", message="before")
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space"):
        log.write("warning", message="lost")
    monkeypatch.undo()
    log.write("warning", message="after")
    events, _ = read_new(event_file(tmp_path, 7))
    assert [event["message"] for event in events] == ["before", "after"]


def test_a_write_that_was_cut_by_a_signal_goes_on(tmp_path, log, monkeypatch):
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole_write(file, data[:10]))
    log.write("warning", message="whole")
    assert read_new(event_file(tmp_path, 7))[0][0]["message"] == "whole"


def test_threads_of_a_rank_never_mix_their_lines(tmp_path, log):
    def write(name):
        for number in range(200):
            log.write("warning", message=name * 300, number=number)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events, _ = read_new(event_file(tmp_path, 7))
    for name in "ab":
        assert [event["number"] for event in events if event["message"] == name * 300] == list(range(200))


def test_nothing_is_read_where_no_file_is(tmp_path):
    assert read_new(event_file(tmp_path, 0), 12) == ([], 12)
    (tmp_path / "events").write_text("a file where the folder should be")
    assert read_new(event_file(tmp_path, 0), 12) == ([], 12)


def test_each_event_is_read_once(tmp_path, log):
    path = event_file(tmp_path, 7)
    log.write("warning", message="one")
    first, offset = read_new(path)
    log.write("warning", message="two")
    second, offset = read_new(path, offset)
    assert [event["message"] for event in first + second] == ["one", "two"]
    assert read_new(path, offset) == ([], path.stat().st_size)


def test_a_torn_last_line_waits_for_its_end(tmp_path):
    path = tmp_path / "events.jsonl"
    line = json.dumps({"kind": "step", "loss": 2.5, "name": "é"}, ensure_ascii=False).encode() + b"\n"
    for cut in range(len(line)):
        path.write_bytes(line + line[:cut])
        events, offset = read_new(path)
        assert (len(events), offset) == (1, len(line))
        path.write_bytes(line + line)
        assert len(read_new(path, offset)[0]) == 1


def test_a_resumed_run_ends_a_torn_line_before_it_writes(tmp_path):
    log = EventLog(tmp_path, 0)
    log.write("warning", message="first life")
    log.close()
    path = event_file(tmp_path, 0)
    with path.open("ab") as file:
        file.write(b'{"v":1,"kind":"step","lo')
    _, offset = read_new(path)
    log = EventLog(tmp_path, 0)
    log.write("warning", message="second life")
    log.close()
    events, _ = read_new(path, offset)
    assert [event["message"] for event in events] == ["second life"]


def test_a_resumed_run_adds_no_line_where_none_was_torn(tmp_path):
    for _ in range(2):
        log = EventLog(tmp_path, 0)
        log.write("warning", message="a life")
        log.close()
    assert b"\n\n" not in event_file(tmp_path, 0).read_bytes()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\xff\xfe\x00\xd8",
        b"\x00" * 64,
        b"[1, 2]",
        b'"step"',
        b"{}",
        b'{"kind": 3}',
        b"\r",
        b'{"kind":"st',
        b"[" * 100_000,
    ],
    ids=["no-utf8", "zeros", "list", "text", "no-kind", "number-kind", "return", "torn", "nested"],
)
def test_a_line_that_is_no_event_is_skipped(rubbish, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind":"one"}\n' + rubbish + b'\n{"kind":"two"}\n')
    events, offset = read_new(path)
    assert ([event["kind"] for event in events], offset) == (["one", "two"], path.stat().st_size)


def test_a_figure_that_is_no_json_is_read_as_unknown(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind":"step","loss":NaN,"grad_norm":-Infinity}\n')
    assert read_new(path)[0] == [{"kind": "step", "loss": None, "grad_norm": None}]


@pytest.mark.parametrize("filler", ["", "a far longer name than before", "x"])
def test_a_file_that_was_replaced_is_read_from_its_start(filler, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind":"old"}\n{"kind":"old"}\n')
    _, offset = read_new(path)
    path.write_bytes(b'{"kind":"new","filler":"%s"}\n' % (filler.encode()))
    assert [event["kind"] for event in read_new(path, offset)[0]] == ["new"]


WRITER = """
import sys
from pathlib import Path
from engine.events import EventLog
log = EventLog(Path(sys.argv[1]), int(sys.argv[2]))
for number in range(400):
    log.write("step", step=number, note="x" * (number * 7919 % 9000))
log.close()
"""


def test_a_reader_beside_two_writing_processes_sees_every_event_once_in_order(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(rank)], cwd=ROOT) for rank in (0, 1)]
    offsets, steps = [0, 0], ([], [])
    running = True
    while running:
        # Looked at before reading, so that the last round reads what was written until the end.
        running = any(writer.poll() is None for writer in writers)
        for rank in (0, 1):
            events, offsets[rank] = read_new(event_file(tmp_path, rank), offsets[rank])
            assert all(event["rank"] == rank for event in events)
            steps[rank].extend(event["step"] for event in events)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert steps == (list(range(400)), list(range(400)))


def test_the_ends_of_a_long_file_are_its_first_and_last_events_and_what_comes_after(tmp_path):
    log = EventLog(tmp_path, 3)
    for step in range(1000):
        log.write("step", step=step)
    path = event_file(tmp_path, 3)
    events, offset = read_ends(path, head_bytes=300, tail_bytes=500)
    steps = [event["step"] for event in events]
    assert (steps[:2], steps[-2:], offset) == ([0, 1], [998, 999], path.stat().st_size)
    assert len(steps) < 20
    log.write("step", step=1000)
    log.close()
    assert [event["step"] for event in read_new(path, offset)[0]] == [1000]


def test_the_ends_of_a_short_file_are_all_of_it(tmp_path):
    log = EventLog(tmp_path, 0)
    for step in range(30):
        log.write("step", step=step)
    log.close()
    assert read_ends(event_file(tmp_path, 0)) == read_new(event_file(tmp_path, 0))
    assert read_ends(tmp_path / "nothing") == ([], 0)


def test_a_last_event_longer_than_the_end_that_is_read_is_still_read(tmp_path):
    log = EventLog(tmp_path, 0)
    for step in range(100):
        log.write("step", step=step)
    log.write("warning", message="x" * 5000)
    log.close()
    events, _ = read_ends(event_file(tmp_path, 0), head_bytes=200, tail_bytes=300)
    assert events[-1]["message"] == "x" * 5000


def test_all_but_some_kinds_are_read_in_their_order_and_whole(tmp_path, log):
    for step in (1, 2):
        log.write("memory", active_bytes=step)
        log.write("step", step=step, loss=1.0)
    with event_file(tmp_path, 7).open("ab") as file:
        file.write(b'not json\n{"kind": "memory", "v": 1}\n{"kind":"step","step":3')
    found = list(read_all_but(event_file(tmp_path, 7), "memory", "gpu"))
    assert [event["step"] for event in found] == [1, 2]
    assert list(read_all_but(tmp_path / "events" / "none.jsonl", "gpu")) == []
