"""What a run that goes on looks like, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from titancli.launch.progress import Lines, doing
from titancli.monitor.fold import fold
from titancli.monitor.run_state import RunState


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "rank": 0, "time": 1.0, **fields}


def phase(name: str, state: str = "begin") -> dict[str, Any]:
    return event("phase", name=name, state=state)


def step(number: int, **fields: Any) -> dict[str, Any]:
    values = {"loss": 2.5, "grad_norm": 1.0, "step_s": 2.0, "tokens_per_s_per_gpu": 4100.4}
    return event("step", step=number, **(values | fields))


def test_lines_tell_phases_steps_and_warnings_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines, state = Lines(10), RunState()
    batches: list[list[dict[str, Any]]] = [
        [],
        [phase("build")],
        [phase("build", "end"), phase("train")],
        [step(1, tokens_per_s_per_gpu=None), event("memory", host_rss_bytes=2**29)],
        [event("warning", message="low disk")],
        [step(10)],
        [],
    ]
    for events in batches:
        state = fold(state, events)
        lines.show(state)
        lines.show(state)
    assert capsys.readouterr().out.splitlines() == [
        "starting processes",
        "building the model",
        "first step",
        "step  1/10  loss 2.5000  grad norm 1.0000  n/a tokens/s/GPU  memory 512 MiB  left n/a",
        "warning: rank 0: low disk",
        "step 10/10  loss 2.5000  grad norm 1.0000  4,100 tokens/s/GPU  memory 512 MiB  left 0.0 s",
    ]


def test_validation_is_told_once_with_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    lines, state = Lines(10), RunState()
    told = [phase("train"), step(2), phase("train", "end"), phase("validate")]
    for events in ([phase("build")], told, [event("validation", step=2, loss=2.25)], []):
        state = fold(state, events)
        lines.show(state)
    assert capsys.readouterr().out.splitlines()[-1] == "validation loss 2.2500 after step 2"


def test_run_that_ends_in_its_first_step_is_not_said_to_build_again(capsys: pytest.CaptureFixture[str]) -> None:
    lines, state = Lines(10), RunState()
    for events in ([phase("build")], [phase("build", "end"), phase("train")], [phase("train", "end")]):
        state = fold(state, events)
        lines.show(state)
    assert capsys.readouterr().out.splitlines() == ["building the model", "first step"]


def test_model_that_is_built_between_two_looks_is_said_to_be_built(capsys: pytest.CaptureFixture[str]) -> None:
    lines, state = Lines(10), RunState()
    for events in ([], [phase("build"), phase("build", "end"), phase("train")]):
        state = fold(state, events)
        lines.show(state)
    assert capsys.readouterr().out.splitlines() == ["starting processes", "building the model", "first step"]


def test_processors_count_tokens_by_process(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(10).show(fold(RunState(), [event("run_started", plan={"gpu": "cpu"}), step(3)]))
    assert "  4,100 tokens/s/process  " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "starting processes"),
        ([phase("build")], "building the model"),
        ([phase("compile")], "compiling"),
        ([phase("train")], "first step"),
        ([phase("train"), step(1)], "training"),
        ([step(1), phase("save")], "saving a checkpoint"),
        ([phase("dream")], "dream"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_silence_always_has_a_name(events: list[dict[str, Any]], words: str) -> None:
    assert doing(fold(RunState(), events)) == words
