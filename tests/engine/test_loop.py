"""A run: what it says, and how it ends."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from layouts import layout
from shares import gradients_of
from synthetic import Rows, tiny

import engine.loop
import engine.training
from engine.build import Built
from engine.data.batch import Batch
from engine.events import event_file, read_new
from engine.first_failure import PeerFailed
from engine.loop import fit
from engine.planner.plan import plan

# ---- a bad step ------------------------------------------------------------------------------


def plant_nan(arguments: dict[str, Any], folder: str, where: str, rank: int, step: int) -> dict[str, Any]:
    """Makes one gradient of one rank NaN at one step; returns what the run said and the weights it left."""
    config = tiny(**arguments)
    resolved = plan(config)
    # Pipeline ranks are outermost, and read the same.
    data_rank = dist.get_rank() % resolved.mesh.data_ranks
    seen: dict[str, Any] = {}
    before = engine.training.forward_backward
    calls = 0

    def planting(built: Built, batches: Any, denominator: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        seen["built"] = built
        if calls == step:
            seen["weights"] = {name: local(weight).clone() for name, weight in built.weights.items()}
            seen["states"] = [
                {key: local(value).clone() for key, value in state.items()} for state in built.optimizer.state.values()
            ]
        loss = before(built, batches, denominator)
        if calls == step and dist.get_rank() == rank:
            local(gradients_of(built)[where]).view(-1)[0] = float("nan")
        return loss

    engine.training.forward_backward = planting
    try:
        fit(config, resolved, run=Path(folder), source=Rows(config, resolved, data_rank=data_rank))
    except RuntimeError as failure:
        seen["message"] = str(failure)
    finally:
        engine.training.forward_backward = before
    built = seen["built"]
    same_weights = all(torch.equal(seen["weights"][name], local(weight)) for name, weight in built.weights.items())
    states = list(built.optimizer.state.values())
    same_states = all(
        torch.equal(old[key], local(new[key])) for old, new in zip(seen["states"], states, strict=True) for key in old
    )
    return {
        "message": seen.get("message"),
        "weights_unchanged": same_weights,
        "states_unchanged": same_states,
        "calls": calls,
        "ended": read_new(event_file(Path(folder), dist.get_rank()))[0][-1],
    }


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


BAD_WEIGHT = "layers.1.feed_forward.w3.weight"


@pytest.mark.world
@pytest.mark.parametrize("log_freq", [1, 100])
@pytest.mark.parametrize("kernel", ["fused", "foreach"])
def test_c26_a_bad_step_stops_all_ranks_and_changes_nothing(
    kernel: str, log_freq: int, gloo: GlooPool, tmp_path: Path
) -> None:
    arguments = layout(2, 1, 2, training__steps=10, metrics__log_freq=log_freq, optimizer__implementation=kernel)
    ranks = gloo.run(2, plant_nan, arguments=arguments, folder=str(tmp_path), where=BAD_WEIGHT, rank=1, step=3)
    for rank in ranks:
        assert rank["weights_unchanged"]
        assert rank["states_unchanged"]
        assert rank["calls"] == (3 if log_freq == 1 else 4)
        assert "step 3" in rank["message"]
        assert "rank 1" in rank["message"]
        assert BAD_WEIGHT in rank["message"]
        ended = rank["ended"]
        assert (ended["kind"], ended["exit_code"]) == ("run_ended", 1)
        assert ended["first_failure"]["rank"] == 1
        assert ended["first_failure"]["message"] == rank["message"]


@pytest.mark.world
@pytest.mark.parametrize(
    ("schedule", "where", "rank"),
    [("1F1B", "layers.1.ffn_norm.weight", 1), ("ZBVZeroBubble", "layers.2.attention.wo.weight", 1)],
)
def test_c26_a_bad_weight_of_a_later_stage_is_named_on_all_ranks(
    schedule: str, where: str, rank: int, gloo: GlooPool, tmp_path: Path
) -> None:
    values = {
        "parallelism__pipeline_parallel_degree": 2,
        "parallelism__pipeline_parallel_schedule": schedule,
        "model__shape__n_layers": 2 if schedule == "1F1B" else 4,
    }
    arguments = layout(2, 1, 1, training__steps=10, **values)
    for found in gloo.run(2, plant_nan, arguments=arguments, folder=str(tmp_path), where=where, rank=rank, step=3):
        assert found["weights_unchanged"]
        assert found["message"].startswith(f"step 3: the gradient of {where} is not finite on rank {rank}")
        assert found["ended"]["first_failure"]["rank"] == rank


@pytest.mark.world
def test_c26_a_bad_last_step_is_found_too(gloo: GlooPool, tmp_path: Path) -> None:
    arguments = layout(2, 1, 2, training__steps=3)
    ranks = gloo.run(2, plant_nan, arguments=arguments, folder=str(tmp_path), where="norm.weight", rank=0, step=3)
    assert all("step 3" in rank["message"] and "norm.weight" in rank["message"] for rank in ranks)


@pytest.mark.world
def test_c26_a_bad_step_shows_no_figure(gloo: GlooPool, tmp_path: Path) -> None:
    arguments = layout(2, 2, 1, training__steps=6)
    gloo.run(2, plant_nan, arguments=arguments, folder=str(tmp_path), where=BAD_WEIGHT, rank=1, step=3)
    steps = [event["step"] for event in read_new(event_file(tmp_path, 0))[0] if event["kind"] == "step"]
    assert steps == [1, 2]


def bad_loss(folder: str, factor: float, more: float) -> str:
    """The loss of rank 1 is multiplied and added to at step 3; what its fit says."""
    config = tiny(**layout(2, 1, 2))
    resolved = plan(config)
    before, calls = engine.loop.build, 0

    def build_with_planted_loss(*args: Any) -> Built:
        built = before(*args)
        head = built.parts[0].output
        assert head is not None
        real = head.loss

        def loss(*arguments: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            bad = calls == 3 and dist.get_rank() == 1
            return real(*arguments) * factor + more if bad else real(*arguments)

        head.loss = loss
        return built

    engine.loop.build = build_with_planted_loss
    try:
        fit(config, resolved, run=Path(folder), source=Rows(config, resolved, data_rank=dist.get_rank()))
    except RuntimeError as failure:
        return str(failure)
    finally:
        engine.loop.build = before
    return "nothing"


@pytest.mark.world
@pytest.mark.parametrize(("factor", "more", "what"), [(math.nan, 0.0, "the loss (and"), (1.0, math.inf, "the loss is")])
def test_c26_a_loss_that_is_not_finite_names_its_own_rank_whatever_its_gradients_are(
    factor: float, more: float, what: str, gloo: GlooPool, tmp_path: Path
) -> None:
    for message in gloo.run(2, bad_loss, folder=str(tmp_path), factor=factor, more=more):
        assert message.startswith(f"step 3: {what}")
        assert "rank 1" in message


class NoLabels(Rows):
    """Step 2 has no label that counts."""

    def batches(self, step: int) -> list[Batch] | None:
        """As the others', emptied."""
        full = super().batches(step)
        for batch in full or []:
            if step == 2:
                batch.labels_BS[:] = -100
        return full


def test_a_step_without_labels_has_no_loss_and_changes_nothing_else() -> None:
    config = tiny(training__steps=3)
    resolved = plan(config)
    outcome = fit(config, resolved, source=NoLabels(config, resolved, data_rank=0))
    assert [step["tokens"] > 0 for step in outcome.steps] == [True, False, True]
    assert outcome.steps[1]["loss"] is None
    assert outcome.steps[1]["grad_norm"] == 0.0


# ---- how a run ends --------------------------------------------------------------------------


def run_in(folder: str, arguments: dict[str, Any], signalled: int | None = None, at: int = 0) -> dict[str, Any]:
    """A fit with events; rank 1 gets a signal in step `at`, while it fetches the data of the one after."""
    config = tiny(**arguments)
    resolved = plan(config)

    class Interrupting(Rows):
        def batches(self, step: int) -> list[Batch] | None:
            if signalled is not None and step == at + 1 and dist.get_rank() == 1:
                os.kill(os.getpid(), signalled)
            return super().batches(step)

    source = Interrupting(config, resolved, data_rank=dist.get_rank(), ends_after=arguments.get("ends_after"))
    outcome = fit(config, resolved, run=Path(folder), source=source)
    return {"exit_code": outcome.exit_code, "last_step": outcome.last_step, "reason": outcome.reason}


@pytest.mark.world
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)]
)
def test_a_signal_to_one_rank_stops_all_at_the_same_step(
    number: signal.Signals, code: int, gloo: GlooPool, tmp_path: Path
) -> None:
    arguments = layout(2, 1, 2, training__steps=50, metrics__log_freq=100)
    ranks = gloo.run(2, run_in, folder=str(tmp_path), arguments=arguments, signalled=int(number), at=7)
    assert [(rank["exit_code"], rank["last_step"]) for rank in ranks] == [(code, 7), (code, 7)]


@pytest.mark.world
def test_a_stopped_run_says_so_and_writes_its_last_step(gloo: GlooPool, tmp_path: Path) -> None:
    arguments = layout(2, 1, 2, training__steps=50, metrics__log_freq=100)
    gloo.run(2, run_in, folder=str(tmp_path), arguments=arguments, signalled=int(signal.SIGTERM), at=4)
    events = read_new(event_file(tmp_path, 0))[0]
    assert [event["step"] for event in events if event["kind"] == "step"] == [1, 4]
    assert (events[-1]["kind"], events[-1]["exit_code"], events[-1]["first_failure"]) == ("run_ended", 143, None)


@pytest.fixture(scope="module")
def written(gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Events of both ranks of a good run."""
    folder = tmp_path_factory.mktemp("run")
    gloo.run(2, run_in, folder=str(folder), arguments=layout(2, 1, 2, training__steps=5, metrics__log_freq=2))
    return [read_new(event_file(folder, rank))[0] for rank in range(2)]


def test_steps_are_written_at_the_first_every_log_freq_and_the_last(written: list[list[dict[str, Any]]]) -> None:
    assert [event["step"] for event in written[0] if event["kind"] == "step"] == [1, 2, 4, 5]


def test_c25_every_rank_writes_the_same_loss_and_norm(written: list[list[dict[str, Any]]]) -> None:
    figures = [
        [(event["step"], event["loss"], event["grad_norm"]) for event in events if event["kind"] == "step"]
        for events in written
    ]
    assert figures[0] == figures[1]


def test_a_run_writes_its_phases_in_order(written: list[list[dict[str, Any]]]) -> None:
    phases = [(event["name"], event["state"]) for event in written[0] if event["kind"] == "phase"]
    assert phases == [("build", "begin"), ("build", "end"), ("train", "begin"), ("train", "end")]


def test_only_rank_0_writes_the_plan(written: list[list[dict[str, Any]]]) -> None:
    plans = [event["plan"] for events in written for event in events if event["kind"] == "run_started"]
    assert plans[0]["world_size"] == 2
    assert plans[1] is None


def test_local_parameters_of_all_ranks_sum_to_the_model(written: list[list[dict[str, Any]]]) -> None:
    started = [event for events in written for event in events if event["kind"] == "run_started"]
    assert sum(event["local_parameters"] for event in started) == started[0]["plan"]["parameters"]


def test_valid_tokens_are_told_from_slots(written: list[list[dict[str, Any]]]) -> None:
    step = next(event for event in written[0] if event["kind"] == "step")
    assert step["slots"] == 8 * 16
    assert step["tokens"] == sum(16 - row * 2 % 16 for row in range(8))


def test_figures_unknown_on_a_cpu_are_null(written: list[list[dict[str, Any]]]) -> None:
    memory = next(event for event in written[1] if event["kind"] == "memory")
    assert memory["active_bytes"] is None
    assert memory["host_rss_bytes"] > 10_000_000
    assert next(event["gpu"] for event in written[0] if event["kind"] == "run_started") is None


@pytest.mark.world
def test_data_that_ends_ends_the_run_well(gloo: GlooPool, tmp_path: Path) -> None:
    ends = gloo.run(2, ends_after_two, folder=str(tmp_path))
    assert ends == [("the data ended after step 2", 0, 2)] * 2
    steps = [event["step"] for event in read_new(event_file(tmp_path, 0))[0] if event["kind"] == "step"]
    assert steps == [1, 2]


def ends_after_two(folder: str) -> tuple[str, int, int]:
    """A fit whose source has two steps of five."""
    config = tiny(**layout(2, 1, 2, metrics__log_freq=10))
    resolved = plan(config)
    outcome = fit(
        config, resolved, run=Path(folder), source=Rows(config, resolved, data_rank=dist.get_rank(), ends_after=2)
    )
    return outcome.reason, outcome.exit_code, outcome.last_step


def lacks_on_rank_1(folder: str, lacks: str, at: int) -> dict[str, Any]:
    """A fit of five steps whose rank 1 has no data of step `at`, or cannot read it; what each rank's fit says."""
    config = tiny(**layout(2, 1, 2, metrics__log_freq=10))
    resolved = plan(config)

    class Lacking(Rows):
        def batches(self, step: int) -> list[Batch] | None:
            if step == at and dist.get_rank() == 1:
                raise ValueError("boom-17")
            return super().batches(step)

    if lacks == "end":
        ends_after = at - 1 if dist.get_rank() == 1 else None
        source = Rows(config, resolved, data_rank=dist.get_rank(), ends_after=ends_after)
    else:
        source = Lacking(config, resolved, data_rank=dist.get_rank())
    try:
        outcome = fit(config, resolved, run=Path(folder), source=source)
    except (ValueError, PeerFailed) as failure:
        return {"failure": type(failure).__name__, "text": str(failure)}
    return {"exit_code": outcome.exit_code, "last_step": outcome.last_step, "reason": outcome.reason}


@pytest.mark.world
@pytest.mark.parametrize("done", [0, 2])
def test_c37_data_that_ends_on_one_rank_ends_the_run_well_and_names_it(
    done: int, gloo: GlooPool, tmp_path: Path
) -> None:
    first, second = gloo.run(2, lacks_on_rank_1, folder=str(tmp_path), lacks="end", at=done + 1)
    assert first == second
    assert (first["exit_code"], first["last_step"]) == (0, done)
    assert first["reason"].startswith(f"the data ended after step {done} on rank 1, before that of the other ranks")


@pytest.mark.world
@pytest.mark.parametrize("at", [1, 3])
def test_c41_a_rank_that_cannot_read_data_is_the_failure_of_all_after_the_same_step(
    at: int, gloo: GlooPool, tmp_path: Path
) -> None:
    peer, own = gloo.run(2, lacks_on_rank_1, folder=str(tmp_path), lacks="error", at=at)
    assert own == {"failure": "ValueError", "text": "boom-17"}
    assert peer["failure"] == "PeerFailed"
    assert "rank 1 on" in peer["text"]
    ends = [read_new(event_file(tmp_path, rank))[0][-1] for rank in range(2)]
    assert [end["exit_code"] for end in ends] == [1, 1]
    assert ends[0]["first_failure"] == ends[1]["first_failure"]
    assert ends[0]["first_failure"].pop("place").endswith(" in batches")
    assert ends[0]["first_failure"] | {"host": ""} == {
        "rank": 1,
        "host": "",
        "type": "ValueError",
        "message": "boom-17",
    }
    steps = [event["step"] for event in read_new(event_file(tmp_path, 0))[0] if event["kind"] == "step"]
    assert steps == ([] if at == 1 else [1, 2])


def test_one_process_needs_no_launcher_and_no_run_folder() -> None:
    config = tiny(training__steps=2)
    resolved = plan(config)
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    assert [step["step"] for step in outcome.steps] == [1, 2]
    assert not dist.is_initialized()


def test_determinism_is_put_back_after_a_run() -> None:
    config = tiny(training__steps=1, debug__deterministic=True)
    resolved = plan(config)
    fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    assert not torch.are_deterministic_algorithms_enabled()
