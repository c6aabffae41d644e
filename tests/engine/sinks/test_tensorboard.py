"""Event files of TensorBoard, as its own reader reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.events import Event
from engine.sinks.tensorboard import TensorBoardSink

Told = Callable[..., Event]


def write(folder: Path, *events: Event) -> None:
    """One start of a run."""
    sink = TensorBoardSink(folder)
    sink.load()
    sink.take(events)
    sink.close()


def read(folder: Path) -> EventAccumulator:
    """What TensorBoard shows of a folder."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def steps(found: EventAccumulator, name: str) -> Sequence[tuple[int, float]]:
    """The curve of a name."""
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_curves_have_the_steps_and_times_of_the_events(
    told: Told, started: Told, stepped: Told, tmp_path: Path
) -> None:
    write(tmp_path, started(), told("memory", ooms=0), stepped(1, 5.5), stepped(10, 4.5))
    found = read(tmp_path)
    assert steps(found, "loss") == [(1, 5.5), (10, 4.5)]
    assert steps(found, "memory/ooms") == [(1, 0.0)]
    assert found.Scalars("loss")[0].wall_time == 1_800_000_000.5


def test_warnings_and_the_end_are_texts_at_the_newest_step(
    told: Told, started: Told, stepped: Told, tmp_path: Path
) -> None:
    ended = told("run_ended", reason="completed", exit_code=0, first_failure=None)
    write(tmp_path, started(), stepped(3, 5.5), told("warning", message="take care"), ended)
    found = read(tmp_path)
    texts = {tag: found.Tensors(f"{tag}/text_summary")[0] for tag in ("warning", "run_ended")}
    said = {tag: (text.step, list(text.tensor_proto.string_val)) for tag, text in texts.items()}
    assert said == {"warning": (3, [b"take care"]), "run_ended": (3, [b"completed"])}


def test_a_run_that_ended_before_it_began_leaves_no_file(told: Told, tmp_path: Path) -> None:
    write(tmp_path / "none", told("run_ended", reason="OSError: no", exit_code=1, first_failure=None))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("resumed_from", "kept"), [(10, [(1, 5.5), (10, 4.5)]), (None, [])])
def test_steps_that_a_resumed_run_does_anew_are_not_shown_twice(
    resumed_from: int | None, kept: list[tuple[int, float]], started: Told, stepped: Told, tmp_path: Path
) -> None:
    write(tmp_path, started(), stepped(1, 5.5), stepped(10, 4.5), stepped(20, 3.5))
    write(tmp_path, started(resumed_from=resumed_from), stepped(20, 3.25), stepped(30, 3.0))
    assert steps(read(tmp_path), "loss") == [*kept, (20, 3.25), (30, 3.0)]
