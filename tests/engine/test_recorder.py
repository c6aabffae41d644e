"""What a rank writes, and what its sinks get of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.events import Event, EventLog, event_file, read_new
from engine.recorder import Recorder


class Listed:
    """Keeps events; `fails_at` is the kind that it does not take."""

    key, name = "metrics.listed", "A list"

    def __init__(self, fails_at: str = "") -> None:
        self.events: list[Event] = []
        self.fails_at = fails_at

    def load(self) -> None:
        """Nothing."""

    def take(self, events: Sequence[Event]) -> None:
        if any(event["kind"] == self.fails_at for event in events):
            raise OSError("no room")
        self.events += events

    def close(self) -> None:
        if self.fails_at == "close":
            raise OSError("no room")

    def advice(self, failure: BaseException) -> str:
        return f"mend {type(failure).__name__}"


TOLD = "metrics.listed: A list takes in no more of this run (OSError: no room); mend OSError"


def run(folder: Path, *sinks: Listed, end: dict[str, Any] | None = None) -> list[Event]:
    """A short run; what it has written."""
    log = EventLog(folder, 0)
    recorder = Recorder(log, sinks)
    with recorder.sinks_open():
        recorder.begin("build")
        recorder.write("run_started", resumed_from=None)
        recorder.write("step", step=1, loss=2.5)
        recorder.end_run(**(end or {"reason": "completed", "exit_code": 0, "first_failure": None}))
    log.close()
    return read_new(event_file(folder, 0))[0]


def test_a_sink_gets_the_events_that_are_written(tmp_path: Path) -> None:
    sink = Listed()
    written = run(tmp_path, sink)
    assert [event["kind"] for event in written] == ["phase", "run_started", "step", "run_ended"]
    assert [(event["kind"], event.get("loss")) for event in sink.events] == [
        (event["kind"], event.get("loss")) for event in written
    ]


def test_a_sink_that_fails_is_a_warning_and_the_others_go_on(tmp_path: Path) -> None:
    bad, good = Listed(fails_at="run_started"), Listed()
    log = EventLog(tmp_path, 0)
    recorder = Recorder(log, (bad, good))
    with recorder.sinks_open():
        recorder.write("run_started", resumed_from=None)
        # Its own thread tells of it.
        recorder._feeds[0].close(20.0)
        recorder.write("step", step=1, loss=2.5)
        recorder.end_run(reason="completed", exit_code=0, first_failure=None)
    log.close()
    written = [(event["kind"], event.get("message")) for event in read_new(event_file(tmp_path, 0))[0]]
    assert written == [("run_started", None), ("warning", TOLD), ("step", None), ("run_ended", None)]
    assert [(event["kind"], event.get("message")) for event in good.events] == written


def test_nothing_is_written_after_the_end_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, Listed(fails_at="close"))[-1]["kind"] == "run_ended"
    assert capsys.readouterr().err == f"{TOLD}\n"
