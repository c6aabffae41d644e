"""The validation loss is that of one process in every layout, and training does not notice it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from parity import Layout
from resuming import train

import engine.training
import engine.validation

LAYOUTS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "fsdp2": ({"dp": 2}, {}),
    "hsdp2x2": ({"rep": 2, "dp": 2}, {}),
    "tp2 cp2": ({"tp": 2, "cp": 2}, {}),
    "fsdp2 tp2 whole logits": ({"dp": 2, "tp": 2}, {"parallelism__disable_loss_parallel": True}),
    "ulysses": ({"cp": 2}, {"parallelism__context_parallel_method": "ulysses"}),
    "pp2": ({"pp": 2}, {}),
    "interleaved pp2 fsdp2": ({"pp": 2, "dp": 2}, {"parallelism__pipeline_parallel_schedule": "Interleaved1F1B"}),
    "zbv pp2": ({"pp": 2}, {"parallelism__pipeline_parallel_schedule": "ZBVZeroBubble"}),
    "dualpipev pp2 tp2": ({"pp": 2, "tp": 2}, {"parallelism__pipeline_parallel_schedule": "DualPipeV"}),
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents that make 83 samples of 16 tokens and a rest: no whole number of global batches."""
    path = tmp_path_factory.mktemp("held") / "held.jsonl"
    texts = ["".join(chr(97 + (place * step) % 26) for place in range(190)) for step in (1, 3, 5, 7, 9, 11, 15)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def arguments(degrees: dict[str, int], held_out: str, **values: Any) -> dict[str, Any]:
    """Three steps of four layers in float32, a validation after the second and after the last."""
    validation = {
        "model__shape__n_layers": 4,
        "validation__enable": True,
        "validation__dataset": "jsonl",
        "validation__dataset_path": held_out,
        "validation__freq": 2,
        "training__steps": 3,
        "data__document_mask": True,
    }
    return Layout(name="", degrees=degrees).arguments("AdamW") | validation | values


def validations(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The validations that a rank wrote down."""
    return [event for event in found["events"] if event["kind"] == "validation"]


@pytest.fixture(scope="module")
def ran(held_out: str, gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What the ranks of a layout found; each runs once."""
    known: dict[str, list[dict[str, Any]]] = {}

    def found(layout: str) -> list[dict[str, Any]]:
        if layout not in known:
            degrees, values = LAYOUTS[layout]
            given = arguments(degrees, held_out, **values)
            folder = str(tmp_path_factory.mktemp("ran"))
            known[layout] = gloo.run(given["processes"], train, arguments=given, folder=folder)
        return known[layout]

    return found


@pytest.fixture(scope="module")
def alone(held_out: str, gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process."""
    folder = str(tmp_path_factory.mktemp("alone"))
    found: dict[str, Any] = gloo.run(1, train, arguments=arguments({}, held_out), folder=folder)[0]
    return found


@pytest.mark.world
def test_a_validation_follows_every_freq_steps_and_the_last(alone: dict[str, Any]) -> None:
    found = validations(alone)
    assert [event["step"] for event in found] == [2, 3]
    # 7 documents of 192 tokens make 1,343 // 16 = 83 samples; the six ends of documents in them have no label.
    assert {event["tokens"] for event in found} == {83 * 16 - 6}
    assert all(math.isclose(event["loss"], math.log(258), rel_tol=0.1) for event in found)
    phases = [event["name"] for event in alone["events"] if event["kind"] == "phase" and event["state"] == "begin"]
    assert phases.count("validate") == 2


@pytest.mark.world
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_validation_loss_is_that_of_one_process(
    layout: str, alone: dict[str, Any], ran: Callable[[str], Any]
) -> None:
    for one, other in zip(validations(ran(layout)[0]), validations(alone), strict=True):
        assert one["tokens"] == other["tokens"]
        # Products and sums over ranks are of another order, in float32; 2e-8 is the most that was seen.
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)


@pytest.mark.world
@pytest.mark.parametrize("layout", ["fsdp2", "interleaved pp2 fsdp2", "zbv pp2"])
def test_training_does_not_notice_a_validation(
    layout: str, held_out: str, ran: Callable[[str], Any], gloo: GlooPool, tmp_path: Path
) -> None:
    degrees, values = LAYOUTS[layout]
    given = arguments(degrees, held_out, **values) | {"validation__enable": False}
    without = gloo.run(given["processes"], train, arguments=given, folder=str(tmp_path))
    for one, other in zip(ran(layout), without, strict=True):
        assert one["losses"] == other["losses"]
        assert all(one["held"][name].equal(other["held"][name]) for name in other["held"])


@pytest.mark.world
def test_a_validation_of_some_steps_reads_the_same_batches_each_time(
    held_out: str, gloo: GlooPool, tmp_path: Path
) -> None:
    # A learning rate of nothing: the same batches give the same loss.
    given = arguments({}, held_out) | {"validation__freq": 1, "validation__steps": 1, "optimizer__lr": 0.0}
    found = validations(gloo.run(1, train, arguments=given, folder=str(tmp_path))[0])
    assert len({event["loss"] for event in found}) == 1
    assert {event["batches"] for event in found} == {1}


@pytest.mark.world
def test_c37_held_out_text_of_less_than_a_global_batch_is_read_to_its_end(gloo: GlooPool, tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text(json.dumps({"text": "x" * 190}) + "\n")
    given = arguments({"dp": 2}, str(path))
    [event, _] = validations(gloo.run(2, train, arguments=given, folder=str(tmp_path))[0])
    assert event["tokens"] == 11 * 16


# ---- when there is one, and what else may happen: one process that is this one ---------------


def brief(held_out: str, **values: Any) -> dict[str, Any]:
    """Arguments of one process with one layer: a validation of two global batches after every step."""
    few = {"model__shape__n_layers": 1, "training__steps": 4, "validation__freq": 1, "validation__steps": 2}
    return arguments({}, held_out, **few) | values


def validated_steps(found: dict[str, Any]) -> list[int]:
    """The steps after which there was one."""
    return [event["step"] for event in validations(found)]


def test_the_last_step_before_the_data_ends_is_followed_by_one(held_out: str, tmp_path: Path) -> None:
    given = brief(held_out, validation__freq=2)
    assert validated_steps(train(given, str(tmp_path), ends_after=3)) == [2, 3]


def test_one_that_was_due_at_the_step_of_a_resume_is_not_run_again(held_out: str, tmp_path: Path) -> None:
    given = brief(held_out, validation__freq=2)
    train(given, str(tmp_path), ends_after=2)
    assert validated_steps(train(given, str(tmp_path))) == [2, 4]


def test_held_out_text_moves_no_position_in_the_data(held_out: str, tmp_path: Path) -> None:
    values = {"training__dataset": "text", "training__dataset_path": __file__, "checkpoint__interval": 2}
    given = brief(held_out, **values)
    straight = train(given | {"validation__enable": False}, str(tmp_path / "straight"), reads=True)
    train(given, str(tmp_path / "cut"), reads=True)
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-4")
    resumed = train(given, str(tmp_path / "cut"), reads=True)
    assert list(resumed["losses"]) == [3, 4]
    assert {step: straight["losses"][step] for step in (3, 4)} == resumed["losses"]


def planted(
    change: Callable[[int, torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch, name: str, module: Any
) -> None:
    """Lets `change` look at the sum of losses of each call (from 1) of a function of the step."""
    before, calls = getattr(module, name), 0

    def called(*given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return change(calls, before(*given))

    monkeypatch.setattr(module, name, called)


def test_a_loss_that_is_not_finite_is_null_with_a_warning_and_training_goes_on(
    held_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(lambda call, loss: loss * math.nan if call == 3 else loss, monkeypatch, "forward_losses", engine.validation)
    found = train(brief(held_out, validation__freq=2), str(tmp_path))
    first, last = validations(found)
    assert (first["loss"] is None, last["loss"] is None, found["last_step"]) == (False, True, 4)
    warnings = [event["message"] for event in found["events"] if event["kind"] == "warning"]
    assert warnings == ["the validation loss after step 4 is nan"]


def test_a_signal_ends_one_before_it_is_over(held_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(call: int, loss: torch.Tensor) -> torch.Tensor:
        if call == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        assert call <= 2, "it went on after a signal"
        return loss

    planted(terminated, monkeypatch, "forward_losses", engine.validation)
    found = train(brief(held_out, validation__steps=-1), str(tmp_path))
    assert (validated_steps(found), found["reason"]) == ([], "stopped by a signal after step 2")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]


def test_weights_that_a_bad_step_leaves_are_not_validated(
    held_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(lambda call, loss: loss * math.nan if call == 2 else loss, monkeypatch, "forward_backward", engine.training)
    with pytest.raises(RuntimeError, match="step 2: the loss is not finite on rank 0"):
        train(brief(held_out, validation__freq=2, metrics__log_freq=10), str(tmp_path))
    events = (tmp_path / "events" / "rank-00000.jsonl").read_text()
    assert '"validation"' not in events
