"""Reports that are written while the next step runs, as on a GPU: none is lost, doubled or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from layouts import layout
from shares import gradients_of
from synthetic import Rows, tiny

import engine.loop
import engine.training
from engine.build import Built
from engine.events import event_file, read_new
from engine.figures import Figures
from engine.loop import fit
from engine.planner.plan import plan
from engine.status import Status
from engine.training import Training


class GoesOn(Training):
    """Queues the next step before this one is reported, as on a GPU; what a CPU queues is done at once."""

    def may_go_on(self, done: int, status: Status) -> bool:
        """As on a GPU."""
        saves = self.saver is not None and self.saver.is_due(done)
        return not saves and not (self.validation is not None and self.validates(done, status))


def lost(_: Figures) -> bool:
    """What an event of CUDA says once its GPU is gone."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def told(
    arguments: dict[str, Any],
    folder: str,
    *,
    goes_on: bool,
    bad_step: int | None = None,
    fails_at: int | None = None,
    loses_gpu: bool = False,
) -> dict[str, Any]:
    """Steps that a run told, what else it told between them, and how it ended.

    One gradient may be NaN, and one step may raise before its own are there; from there on a GPU may answer nothing.
    """
    config = tiny(**arguments)
    resolved = plan(config)
    before, calls = engine.training.forward_backward, iter(range(1, 100))
    arrived = Figures.have_arrived

    def planting(built: Built, batches: Any, denominator: torch.Tensor) -> torch.Tensor:
        call = next(calls)
        if call == fails_at:
            if loses_gpu:
                Figures.have_arrived = lost  # type: ignore[method-assign]
            raise RuntimeError("this rank alone has no memory left")
        loss = before(built, batches, denominator)
        if call == bad_step:
            gradients_of(built)["norm.weight"].fill_(float("nan"))
        return loss

    engine.training.forward_backward = planting
    engine.loop.Training = GoesOn if goes_on else Training  # type: ignore[misc]
    message = None
    try:
        fit(config, resolved, run=Path(folder), source=Rows(config, resolved, data_rank=0))
    except RuntimeError as failure:
        message = str(failure)
    finally:
        Figures.have_arrived = arrived  # type: ignore[method-assign]
        engine.training.forward_backward, engine.loop.Training = before, Training  # type: ignore[misc]
    events = read_new(event_file(Path(folder), 0))[0]
    kept = ("step", "checkpoint", "run_ended")
    steps = [
        {key: event[key] for key in ("step", "loss", "grad_norm", "tokens")}
        for event in events
        if event["kind"] == "step"
    ]
    order = [(event["kind"], event.get("step")) for event in events if event["kind"] in kept]
    return {"steps": steps, "order": order, "message": message}


@pytest.fixture(params=["every", "some", "saved", "one"])
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How often steps are logged and saved."""
    return layout(
        *(1, 1, 1),
        **{
            "every": {"metrics__log_freq": 1},
            "some": {"metrics__log_freq": 2},
            "saved": {"metrics__log_freq": 2, "checkpoint__enable": True, "checkpoint__interval": 2},
            "one": {"metrics__log_freq": 2, "training__steps": 1},
        }[request.param],
    )


@pytest.mark.world
def test_the_same_is_told_in_the_same_order(values: dict[str, Any], gloo: GlooPool, tmp_path: Path) -> None:
    (expected,) = gloo.run(1, told, arguments=values, folder=str(tmp_path / "waits"), goes_on=False)
    (found,) = gloo.run(1, told, arguments=values, folder=str(tmp_path / "goes_on"), goes_on=True)
    assert expected["steps"]
    assert found == expected


@pytest.mark.world
@pytest.mark.parametrize("log_freq", [1, 2])
@pytest.mark.parametrize("bad_step", [2, 3, 5])
def test_a_bad_step_is_named_and_those_before_it_are_told(
    log_freq: int, bad_step: int, gloo: GlooPool, tmp_path: Path
) -> None:
    arguments = layout(1, 1, 1, metrics__log_freq=log_freq)
    planted = {"arguments": arguments, "bad_step": bad_step}
    (expected,) = gloo.run(1, told, **planted, folder=str(tmp_path / "waits"), goes_on=False)
    (found,) = gloo.run(1, told, **planted, folder=str(tmp_path / "goes_on"), goes_on=True)
    assert f"step {bad_step}: " in expected["message"]
    assert found == expected


@pytest.mark.world
def test_a_step_that_raises_is_what_ends_the_run_though_the_one_before_was_bad(gloo: GlooPool, tmp_path: Path) -> None:
    # Where the bad one began is asked of all ranks, and only this one asks.
    planted = {"arguments": layout(1, 1, 1), "bad_step": 3, "fails_at": 4}
    (found,) = gloo.run(1, told, **planted, folder=str(tmp_path), goes_on=True)
    assert found["message"] == "this rank alone has no memory left"
    assert [step["step"] for step in found["steps"]] == [1, 2]


@pytest.mark.world
def test_a_report_that_cannot_be_written_hides_no_failure(gloo: GlooPool, tmp_path: Path) -> None:
    # Step 2 is logged, and its report waits for step 3, which raises: the GPU is not there any more.
    planted = {"arguments": layout(1, 1, 1, metrics__log_freq=2), "fails_at": 3, "loses_gpu": True}
    (found,) = gloo.run(1, told, **planted, folder=str(tmp_path), goes_on=True)
    assert found["message"] == "this rank alone has no memory left"


def seconds(arguments: dict[str, Any], folder: str) -> list[tuple[float, float]]:
    """Of every step of a run that goes on: how long it is said to have taken, and its phases together."""
    told(arguments, folder, goes_on=True)
    steps = [event for event in read_new(event_file(Path(folder), 0))[0] if event["kind"] == "step"]
    return [(step["step_s"], sum(step["phases"].values())) for step in steps]


@pytest.mark.world
def test_a_step_takes_as_long_as_its_phases_whenever_it_is_reported(gloo: GlooPool, tmp_path: Path) -> None:
    (found,) = gloo.run(1, seconds, arguments=layout(1, 1, 1), folder=str(tmp_path))
    assert len(found) == 5
    # A mark is a float64 count of seconds: differences of sums are off by less than a microsecond.
    assert all(step_s >= phases_s - 1e-6 for step_s, phases_s in found)
