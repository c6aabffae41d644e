"""What is told of memory that ran out: by real errors of torch's allocator, planted at one place of a real step."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh import fresh
from synthetic import Rows, tiny

import engine.loop
import engine.model.loss
import engine.step
from engine.build import Built
from engine.events import event_file, read_new
from engine.loop import fit
from engine.memory_failure import memory_fields_at, out_of_memory_in
from engine.planner.plan import plan

CPU = torch.device("cpu")
ASKED_BYTES = 1 << 60


def run_out(*_: object, **__: object) -> None:
    """Asks the allocator for more than any machine has."""
    torch.empty(ASKED_BYTES, dtype=torch.uint8)


def in_forward(built: Built) -> None:
    built.parts[0].layers["1"].register_forward_pre_hook(run_out)


def in_backward(built: Built) -> None:
    built.parts[0].layers["1"].register_full_backward_pre_hook(run_out)


@pytest.mark.parametrize(("plant", "moment"), [(in_forward, "forward"), (in_backward, "backward")])
def test_moment_of_a_step_is_where_the_error_came_through(
    plant: Callable[[Built], None], moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = engine.loop.build

    def planted(*arguments: Any, **more: Any) -> Built:
        built = build(*arguments, **more)
        plant(built)
        return built

    monkeypatch.setattr(engine.loop, "build", planted)
    told = ended(tmp_path)
    assert (told["moment"], told["step"], told["asked_bytes"]) == (moment, 1, ASKED_BYTES)


def test_update_of_the_weights_is_a_moment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.step, "update", run_out)
    assert ended(tmp_path)["moment"] == "optimizer step"


def test_head_and_loss_are_a_moment_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model.loss.PiecewiseLoss, "cut", run_out)
    assert ended(tmp_path, training__loss_chunks=2)["moment"] == "head and loss"


def test_before_the_first_step_the_moment_is_the_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.loop, "versions", run_out)
    told = ended(tmp_path)
    assert (told["moment"], told["step"]) == ("build", None)


def ended(run: Path, **values: Any) -> dict[str, Any]:
    """The field `memory` of a run that has to fail."""
    config = tiny(1, **values)
    resolved = plan(config)
    with pytest.raises(RuntimeError):
        fit(config, resolved, run=run, source=Rows(config, resolved, data_rank=0))
    events, _ = read_new(event_file(run, 0))
    assert events[-1]["kind"] == "run_ended"
    return dict(events[-1]["memory"])


def test_cause_is_found_behind_the_error_of_a_pipeline() -> None:
    cause = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    wrapped = RuntimeError("[Stage 0] failed to run forward")
    wrapped.__cause__ = cause
    assert out_of_memory_in(wrapped) is cause
    assert memory_fields_at(wrapped, device=CPU, phase="train")["memory"]["asked_bytes"] == 2 << 30


def test_failure_of_another_kind_has_no_field_of_memory() -> None:
    assert memory_fields_at(ValueError("boom-17"), device=CPU, phase="train") == {}


def with_little_memory() -> dict[str, Any]:
    """Sets a limit on this process's data, and meets it."""
    limit = 4 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        torch.empty(limit, dtype=torch.uint8)
    except RuntimeError as failure:
        told: dict[str, Any] = memory_fields_at(failure, device=CPU, phase="train")["memory"]
    return told


def test_limit_that_the_process_stood_at_is_named() -> None:
    limit = fresh(with_little_memory)["limit"]
    assert (limit["name"], limit["bytes"]) == ("ulimit -d", 4 << 30)
    assert 0 < limit["used_bytes"] < limit["bytes"]


CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 100.50 GiB is "
    "free. Process 4711 has 14.00 GiB memory in use. 34.95 GiB allowed; Of the allocated memory 33.00 GiB is allocated "
    "by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


@pytest.mark.parametrize(
    ("pattern", "gib"),
    [("_ASKED", 2.0), ("_ALLOCATED", 33.0), ("_UNUSED", 0.5), ("_FREE", 100.5), ("_ALLOWED", 34.95)],
)
def test_figures_of_cudas_allocator_are_read_from_its_text(pattern: str, gib: float) -> None:
    import engine.memory_failure as module

    assert module._size(getattr(module, pattern), torch.OutOfMemoryError(CUDA_TEXT)) == int(gib * 2**30)
