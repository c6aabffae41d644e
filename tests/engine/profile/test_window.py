"""Steps of real processes, broken down: planted causes are found where they were planted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import Rows, tiny

import engine.profile.window
import engine.training
from engine.data.batch import Batch
from engine.events import event_file, read_new
from engine.loop import fit
from engine.planner.plan import plan

# Far longer than a step of a few milliseconds takes on a machine that does much else.
PLANTED_S = 0.6


def sum_of(parts: dict[str, Any]) -> float:
    """All parts of a breakdown."""
    one_by_one = [parts[name] for name in ("data_s", "compute_s", "bubble_s", "host_s", "other_s")]
    return float(sum(one_by_one) + sum(parts["exposed_comm_s"].values()))


def broken_down(folder: str, where: str, rank: int, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a run of five, the fifth of which is profiled, on this rank; a rank sleeps in each, `where`."""
    config = tiny(**{"metrics__log_freq": 5, "metrics__breakdown_freq": 5} | arguments)
    resolved = plan(config)
    sleeps = dist.get_rank() == rank

    class Slow(Rows):
        def batches(self, step: int) -> list[Batch] | None:
            if sleeps and where == "data":
                time.sleep(PLANTED_S)
            return super().batches(step)

    before = engine.training.forward_backward

    def slow(*given: Any) -> torch.Tensor:
        if sleeps and where == "step":
            time.sleep(PLANTED_S)
        return before(*given)

    engine.training.forward_backward = slow
    try:
        source = Slow(config, resolved, data_rank=dist.get_rank() % resolved.mesh.data_ranks)
        fit(config, resolved, run=Path(folder), source=source)
    finally:
        engine.training.forward_backward = before
    events, _ = read_new(event_file(Path(folder), dist.get_rank()))
    return [event for event in events if event["kind"] == "step"]


def own_s(parts: dict[str, Any]) -> float:
    """What a rank does not wait for others."""
    return sum_of(parts) - sum(parts["exposed_comm_s"].values()) - float(parts["bubble_s"])


@pytest.fixture(scope="module")
def slow_rank(gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Steps of two ranks that shard weights, the second of which is slow."""
    folder = str(tmp_path_factory.mktemp("slow-rank"))
    return gloo.run(2, broken_down, folder=folder, where="step", rank=1, arguments={"processes": 2})


@pytest.mark.world
def test_only_the_step_that_was_profiled_is_broken_down_on_every_rank(slow_rank: list[list[dict[str, Any]]]) -> None:
    known = [[step["breakdown"]["compute_s"] is not None for step in steps] for steps in slow_rank]
    assert known == [[False, True]] * 2


@pytest.mark.world
def test_parts_of_a_step_sum_to_it(slow_rank: list[list[dict[str, Any]]]) -> None:
    for steps in slow_rank:
        assert sum_of(steps[-1]["breakdown"]) == pytest.approx(steps[-1]["step_s"], rel=1e-6)


@pytest.mark.world
def test_a_slow_rank_has_the_longest_time_of_its_own_and_the_other_waits_for_it(
    slow_rank: list[list[dict[str, Any]]],
) -> None:
    quick, slow = (steps[-1]["breakdown"] for steps in slow_rank)
    assert own_s(slow) - own_s(quick) > PLANTED_S / 2
    assert quick["exposed_comm_s"]["dp_shard"] > PLANTED_S / 2


@pytest.mark.world
def test_phases_of_the_last_step_are_told(slow_rank: list[list[dict[str, Any]]]) -> None:
    phases = slow_rank[1][-1]["phases"]
    assert phases.keys() == {"gradients_s", "update_s"}
    assert phases["gradients_s"] > PLANTED_S > phases["update_s"] > 0


@pytest.mark.world
def test_a_slow_loader_is_waited_for(gloo: GlooPool, tmp_path: Path) -> None:
    # In a last step nothing is read.
    longer = {"processes": 2, "training__steps": 6}
    ranks = gloo.run(2, broken_down, folder=str(tmp_path), where="data", rank=0, arguments=longer)
    (parts,) = (step["breakdown"] for step in ranks[0] if step["step"] == 5)
    assert parts["data_s"] > PLANTED_S / 2 > parts["host_s"]


@pytest.mark.world
def test_a_pipeline_whose_last_stage_is_slow_is_a_bubble_on_the_first(gloo: GlooPool, tmp_path: Path) -> None:
    pipelined = {"processes": 2, "parallelism__pipeline_parallel_degree": 2, "training__local_batch_size": 8}
    ranks = gloo.run(2, broken_down, folder=str(tmp_path), where="step", rank=1, arguments=pipelined)
    first, last = (steps[-1]["breakdown"] for steps in ranks)
    assert first["bubble_s"] > PLANTED_S / 2
    assert own_s(last) > PLANTED_S / 2


@pytest.mark.world
def test_collectives_of_an_axis_are_counted_as_that_axis(gloo: GlooPool, tmp_path: Path) -> None:
    split = {"processes": 4, "parallelism__tensor_parallel_degree": 2, "training__local_batch_size": 4}
    ranks = gloo.run(4, broken_down, folder=str(tmp_path), where="step", rank=-1, arguments=split)
    for steps in ranks:
        exposed = steps[-1]["breakdown"]["exposed_comm_s"]
        assert exposed["tp"] > 0
        assert exposed["dp_shard"] > 0


def test_a_trace_is_kept_where_people_ask_for_it_though_its_step_is_not_reported(tmp_path: Path) -> None:
    every = {"profiling__enable_profiling": True, "profiling__profile_freq": 3, "metrics__breakdown_freq": 0}
    config = tiny(training__steps=7, metrics__log_freq=5, **every)
    resolved = plan(config)
    outcome = fit(config, resolved, run=tmp_path, source=Rows(config, resolved, data_rank=0))
    kept = sorted(path.name for path in (tmp_path / "profiles").iterdir())
    known = [step["step"] for step in outcome.steps if step["breakdown"]["compute_s"] is not None]
    assert kept == ["step-00000003-rank-00000.json.gz", "step-00000006-rank-00000.json.gz"]
    assert known == [5, 7]


def test_a_profiler_that_cannot_start_ends_no_run_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUPTI is taken")

    monkeypatch.setattr(engine.profile.window, "Recording", refuses)
    config = tiny(training__steps=12, metrics__breakdown_freq=3)
    resolved = plan(config)
    outcome = fit(config, resolved, run=tmp_path, source=Rows(config, resolved, data_rank=0))
    events, _ = read_new(event_file(tmp_path, 0))
    warnings = [event["message"] for event in events if event["kind"] == "warning"]
    assert (outcome.last_step, warnings) == (12, ["no step is broken down: CUPTI is taken"])
