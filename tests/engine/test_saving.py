"""When a run saves, what it keeps, and what it never saves."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from resuming import train
from shares import gradients_of, mine
from synthetic import tiny

import engine.checkpoint.store
import engine.saving
import engine.training
from engine.build import Built
from engine.checkpoint.committed import checkpoints_in
from engine.checkpoint.manifest import read_manifest
from engine.checkpoint.store import SaveFailed
from engine.events import event_file, read_new
from engine.planner.plan import plan
from engine.planner.saved import saved
from engine.status import NonFiniteStep

SAVING = {"training__steps": 7, "checkpoint__interval": 2}


def told(run: Path, kind: str) -> list[dict[str, Any]]:
    """Events of rank 0 of one kind."""
    return [event for event in read_new(event_file(run, 0))[0] if event["kind"] == kind]


def test_a_run_saves_every_interval_and_after_its_last_step(tmp_path: Path) -> None:
    train(SAVING | {"checkpoint__keep_latest_k": 0}, str(tmp_path))
    assert checkpoints_in(tmp_path / "checkpoints").committed == (2, 4, 6, 7)
    assert [(event["step"], event["state"]) for event in told(tmp_path, "checkpoint")] == [
        (step, state) for step in (2, 4, 6, 7) for state in ("begun", "committed")
    ]


def test_a_step_that_is_both_due_and_last_is_saved_once(tmp_path: Path) -> None:
    train(SAVING | {"training__steps": 4}, str(tmp_path))
    assert [event["step"] for event in told(tmp_path, "checkpoint")] == [2, 2, 4, 4]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    train(SAVING | {"checkpoint__keep_latest_k": 1}, str(tmp_path))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-7"]


def test_a_save_is_a_phase_of_its_own_with_its_seconds_and_bytes(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path))
    phases = [(event["name"], event["state"]) for event in told(tmp_path, "phase")]
    at = phases.index(("save", "begin"))
    assert phases[at - 1 : at + 3] == [("train", "end"), ("save", "begin"), ("save", "end"), ("train", "begin")]
    committed = next(event for event in told(tmp_path, "checkpoint") if event["state"] == "committed")
    assert committed["bytes"] == read_manifest(tmp_path / "checkpoints" / "step-2").bytes
    assert committed["seconds"] > 0


def test_a_checkpoint_takes_what_is_planned_for_it(tmp_path: Path) -> None:
    values = SAVING | {"model__shape__dim": 256, "model__shape__ffn_dim": 1024}
    train(values, str(tmp_path))
    planned = saved(tiny(**values), plan(tiny(**values)).parameters).one_bytes
    written = read_manifest(tmp_path / "checkpoints" / "step-2")
    tensors = sum(size for name, size in written.files.items() if name.endswith(".distcp"))
    # Beside them: about 500 bytes of torch's own form for each of 63 tensors, and the random state.
    assert planned < tensors < 1.01 * planned + 63 * 1000


def test_a_manifest_tells_the_position_in_the_data(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path))
    written = read_manifest(tmp_path / "checkpoints" / "step-4")
    assert (written.step, written.samples, written.updates, written.seed) == (4, 32, 4, 0)
    assert written.lr_horizon["steps"] == 7
    assert written.layout["world_size"] == 1


def test_a_checkpoint_that_cannot_be_deleted_is_a_warning(tmp_path: Path) -> None:
    train(SAVING | {"training__steps": 10}, str(tmp_path), ends_after=3)
    stuck = tmp_path / "checkpoints" / "step-2"
    shutil.rmtree(stuck)
    stuck.symlink_to(tmp_path / "checkpoints" / "step-3")
    found = train(SAVING | {"training__steps": 10, "checkpoint__keep_latest_k": 1}, str(tmp_path))
    assert found["last_step"] == 10
    assert any("step-2 of" in event["message"] for event in told(tmp_path, "warning"))
    assert stuck.is_symlink()


MODES = ["async", "async_with_pinned_mem"]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_while_training_goes_on_is_what_was_there(mode: str, tmp_path: Path) -> None:
    # The optimizer changes weights in place while the writing thread reads: one that read them would be found here.
    values = SAVING | {"checkpoint__interval": 1, "checkpoint__keep_latest_k": 0}
    train(values, str(tmp_path / "waits"))
    train(values | {"checkpoint__async_mode": mode}, str(tmp_path / "goes_on"))
    for step in range(1, 8):
        ours, theirs = (tmp_path / name / "checkpoints" / f"step-{step}" for name in ("goes_on", "waits"))
        shards = sorted(path.name for path in theirs.glob("*.distcp"))
        assert shards
        assert [(ours / name).read_bytes() for name in shards] == [(theirs / name).read_bytes() for name in shards]


@pytest.mark.parametrize("mode", MODES)
def test_every_save_that_goes_on_beside_training_is_told_as_any_other(mode: str, tmp_path: Path) -> None:
    train(SAVING | {"checkpoint__keep_latest_k": 0, "checkpoint__async_mode": mode}, str(tmp_path))
    assert checkpoints_in(tmp_path / "checkpoints").committed == (2, 4, 6, 7)
    events = told(tmp_path, "checkpoint")
    assert [(event["step"], event["state"]) for event in events] == [
        (step, state) for step in (2, 4, 6, 7) for state in ("begun", "committed")
    ]
    assert all(0 < event["blocked_s"] < event["seconds"] for event in events[1::2])


def test_a_save_that_training_waits_for_blocks_for_all_its_seconds(tmp_path: Path) -> None:
    train(SAVING, str(tmp_path))
    assert all(event["blocked_s"] == event["seconds"] for event in told(tmp_path, "checkpoint")[1::2])


def test_only_the_newest_are_kept_beside_training(tmp_path: Path) -> None:
    train(SAVING | {"checkpoint__keep_latest_k": 1, "checkpoint__async_mode": "async"}, str(tmp_path))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-7"]


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every checkpoint takes so much longer to write."""
    before = engine.saving.save

    def saving(*given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return before(*given, **named)

    monkeypatch.setattr(engine.saving, "save", saving)


def test_a_save_waits_for_the_one_before_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write, made, waits = engine.saving.save, engine.saving.Background.made, threading.Event()

    def writing(*given: Any, **named: Any) -> Any:
        began_s = time.monotonic()
        waits.wait(60)
        # Longer than the step that went by meanwhile, however slow this machine is.
        time.sleep(0.2 + 2 * (time.monotonic() - began_s))
        return write(*given, **named)

    def waited_for(self: Any) -> Any:
        waits.set()
        return made(self)

    monkeypatch.setattr(engine.saving, "save", writing)
    monkeypatch.setattr(engine.saving.Background, "made", waited_for)
    train(SAVING | {"training__steps": 4, "checkpoint__async_mode": "async"}, str(tmp_path))
    assert checkpoints_in(tmp_path / "checkpoints").committed == (2, 4)
    (warning,) = (event["message"] for event in told(tmp_path, "warning") if "waited" in event["message"])
    assert warning.startswith("the checkpoint of step 4 waited ")
    assert "s until that of step 2 was written: set checkpoint.interval higher" in warning


def broken_in(step: int, monkeypatch: pytest.MonkeyPatch, *, by: str) -> None:
    """A run of one process goes wrong in a step: its gradient is `nan`, or it raises."""
    before, calls = engine.training.forward_backward, iter(range(1, 100))

    def breaking(built: Built, batches: Any, denominator: torch.Tensor) -> torch.Tensor:
        loss = before(built, batches, denominator)
        if next(calls) == step:
            if by != "nan":
                raise ValueError(by)
            gradients_of(built)["norm.weight"].fill_(float("nan"))
        return loss

    monkeypatch.setattr(engine.training, "forward_backward", breaking)


BESIDE = {"checkpoint__interval": 1, "checkpoint__async_mode": "async"}


def test_what_is_in_flight_when_a_run_fails_is_committed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slowed(monkeypatch, 0.3)
    broken_in(3, monkeypatch, by="nan")
    with pytest.raises(NonFiniteStep):
        train(SAVING | BESIDE, str(tmp_path))
    found = checkpoints_in(tmp_path / "checkpoints")
    assert (found.committed, found.unfinished) == ((1, 2), ())
    assert [event["step"] for event in told(tmp_path, "checkpoint") if event["state"] == "committed"] == [1, 2]


def test_a_run_that_fails_alone_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(engine.saving, "save", lambda *_given, **_named: may_end.wait(60))
    broken_in(2, monkeypatch, by="boom-17")
    with pytest.raises(ValueError, match="boom-17"):
        train(SAVING | BESIDE | {"comm__train_timeout_seconds": 1}, str(tmp_path))
    may_end.set()
    (failed,) = (event for event in told(tmp_path, "checkpoint") if event["state"] == "failed")
    assert (failed["step"], failed["message"]) == (1, "the run failed, and 0.5 s later it was not written")


def test_whatever_goes_wrong_beside_training_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaking(*_given: Any, **_named: Any) -> Any:
        raise RuntimeError("boom-17")

    monkeypatch.setattr(engine.saving, "save", breaking)
    with pytest.raises(RuntimeError, match="boom-17"):
        train(SAVING | BESIDE | {"checkpoint__interval": 2}, str(tmp_path))


def plant(arguments: dict[str, Any], folder: str) -> str:
    """The gradient of one weight is NaN on rank 1 at step 3; what is said."""
    before, calls = engine.training.forward_backward, 0

    def planting(built: Built, batches: Any, denominator: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        loss = before(built, batches, denominator)
        if calls == 3 and dist.get_rank() == 1:
            mine(gradients_of(built)["norm.weight"])[0] = float("nan")
        return loss

    engine.training.forward_backward = planting
    try:
        train(arguments, folder)
    except RuntimeError as failure:
        return str(failure)
    finally:
        engine.training.forward_backward = before
    return "nothing"


@pytest.mark.world
@pytest.mark.parametrize(("log_freq", "mode"), [(1, "disabled"), (100, "disabled"), (100, "async_with_pinned_mem")])
def test_c26_nothing_that_is_not_finite_is_saved(log_freq: int, mode: str, gloo: GlooPool, tmp_path: Path) -> None:
    arguments = {
        "processes": 2,
        "parallelism__data_parallel_shard_degree": 2,
        "metrics__log_freq": log_freq,
        "checkpoint__interval": 1,
        "checkpoint__async_mode": mode,
    }
    for message in gloo.run(2, plant, arguments=arguments, folder=str(tmp_path)):
        assert message.startswith("step 3: the gradient of norm.weight is not finite on rank 1")
    found = checkpoints_in(tmp_path / "checkpoints")
    assert (found.committed, found.unfinished) == ((1, 2), ())


def fill_disk(arguments: dict[str, Any], folder: str) -> tuple[str, int]:
    """The disk of rank 1 is full when the checkpoint of step 20 is written; what is said, and the last step begun."""
    before, steps = engine.checkpoint.store._Stream.write, []
    stepping = engine.training.forward_backward

    def writing(stream: Any, data: Any) -> int:
        if dist.get_rank() == 1 and "step-20" in str(stream.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return before(stream, data)

    def counting(*given: Any) -> torch.Tensor:
        steps.append(None)
        return stepping(*given)

    engine.checkpoint.store._Stream.write = writing
    engine.training.forward_backward = counting
    try:
        train(arguments, folder)
    except SaveFailed as failure:
        return str(failure), len(steps)
    return "nothing", len(steps)


@pytest.mark.world
@pytest.mark.parametrize("mode", ["disabled", *MODES])
def test_a_full_disk_ends_the_run_on_all_ranks_and_leaves_nothing_torn(
    mode: str, gloo: GlooPool, tmp_path: Path
) -> None:
    arguments = {
        "processes": 2,
        "parallelism__data_parallel_shard_degree": 2,
        "training__steps": 500,
        "checkpoint__interval": 20,
        "checkpoint__async_mode": mode,
    }
    told = gloo.run(2, fill_disk, arguments=arguments, folder=str(tmp_path))
    for words, _ in told:
        assert words.startswith(f"saving {tmp_path}/checkpoints/step-20 failed on rank 1")
    assert "no space left on device" in told[0][0]
    # All ranks end with the same step, and do not go on to the next save.
    (steps,) = {steps for _, steps in told}
    assert 20 <= steps < 40
    assert checkpoints_in(tmp_path / "checkpoints").unfinished == ()
