"""The next smaller batch, with the optimizer step as it was; and what an out-of-memory looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import tiny

from engine.config import Config
from engine.events import event_file, read_new
from engine.keys import with_values
from engine.loop import fit
from engine.planner.plan import Plan, plan
from engine.rules import check
from engine.shrink import is_out_of_memory, smaller
from engine.sources import Loaded

BASE: dict[str, Any] = {"cluster.gpu": "h100-80", "cluster.gpus_per_node": 8, "training.seq_len": 256}
PP = "parallelism.pipeline_parallel_"
FOUR_STAGES = {PP + "degree": 4}


def loaded(edits: dict[str, Any]) -> Loaded:
    config = with_values(Config(), BASE | edits)
    return Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")


def plan_of(asked: Loaded) -> Plan:
    found = check(asked)
    assert found.ok, found.findings
    assert found.plan is not None
    return found.plan


def chain(edits: dict[str, Any]) -> list[Plan]:
    """The plan of a config, and those of all smaller batches after it."""
    asked = loaded(edits)
    plans = [plan_of(asked)]
    while (found := smaller(asked, plans[-1])) is not None:
        values, report = found
        asked = replace(asked, config=with_values(asked.config, values))
        assert report.plan is not None
        assert plan_of(asked) == report.plan
        plans.append(report.plan)
    return plans


@pytest.mark.parametrize(
    ("edits", "sizes"),
    [
        ({"training.local_batch_size": 8}, [8, 4, 2, 1]),
        ({"training.local_batch_size": 6}, [6, 3, 1]),
        ({"training.local_batch_size": 1}, [1]),
        ({"training.local_batch_size": 9, "training.global_batch_size": 72}, [9, 3, 1]),
        ({"training.local_batch_size": 4, "training.global_batch_size": 96}, [4, 2, 1]),
    ],
)
def test_the_batch_is_halved_until_one_and_the_step_stays(edits: dict[str, Any], sizes: list[int]) -> None:
    plans = chain(edits)
    assert [plan.local_batch_size for plan in plans] == sizes
    assert len({(plan.global_batch_size, plan.tokens_per_step) for plan in plans}) == 1


@pytest.mark.parametrize(
    ("edits", "batches"),
    [
        ({"training.local_batch_size": 16, PP + "microbatch_size": 4}, [(16, 4), (16, 2), (16, 1)]),
        ({"training.local_batch_size": 12, PP + "microbatch_size": 3}, [(12, 3), (12, 1)]),
        ({"training.local_batch_size": 8, PP + "schedule": "GPipe"}, [(8, 1), (4, 1), (2, 1), (1, 1)]),
        ({"training.local_batch_size": 8}, [(8, 1)]),
    ],
    ids=["1F1B", "a third", "GPipe", "1F1B holds no fewer"],
)
def test_a_pipeline_has_smaller_microbatches_and_then_fewer_in_flight(
    edits: dict[str, Any], batches: list[tuple[int, int]]
) -> None:
    plans = chain(FOUR_STAGES | edits)
    assert [(plan.local_batch_size, plan.microbatch_size) for plan in plans] == batches
    assert len({plan.global_batch_size for plan in plans}) == 1


def test_microbatches_that_a_schedule_refuses_are_passed_over() -> None:
    edits = {"training.local_batch_size": 28, PP + "schedule": "Interleaved1F1B", PP + "microbatch_size": 4}
    plans = chain(FOUR_STAGES | edits | {"model.shape.n_layers": 8})
    # Half of 4 would make 14 microbatches, which three rounds cannot share.
    assert [plan.microbatches for plan in plans[:2]] == [7, 28]


def test_every_smaller_batch_needs_less() -> None:
    peaks = [plan.memory.peak_bytes or 0 for plan in chain({"training.local_batch_size": 8})]
    assert peaks == sorted(set(peaks), reverse=True)


def test_a_smaller_batch_is_no_reason_to_recompute_less() -> None:
    edits = {
        "model.flavor": "8B",
        "training.seq_len": 8192,
        "training.local_batch_size": 2,
        "activation_checkpoint.mode": "auto",
    }
    assert {plan.recompute.mode for plan in chain(edits)} == {"full"}


def test_fit_raises_it_whatever_the_setting_says(tmp_path: Path) -> None:
    config = tiny(training__on_out_of_memory="shrink", model__shape__vocab_size=1 << 48)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        fit(config, plan(config), run=tmp_path)
    last = read_new(event_file(tmp_path, 0))[0][-1]
    assert (last["kind"], last["exit_code"]) == ("run_ended", 1)


def raised(work: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - what it is, is the question
        work()
    return caught.value


def test_a_real_lack_of_memory_is_recognised() -> None:
    for work in (lambda: torch.empty(1 << 60), lambda: np.empty(1 << 52), lambda: bytearray(1 << 62)):
        error = raised(work)
        assert is_out_of_memory(type(error).__name__, str(error)), error


@pytest.mark.parametrize(
    ("kind", "message", "is_one"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("torch.OutOfMemoryError", "", True),
        ("AcceleratorError", "CUDA error: out of memory", True),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("RuntimeError", "std::bad_alloc", True),
        ("RuntimeError", "shape mismatch", False),
        ("ValueError", "boom-17", False),
        ("SIGKILL", "the process was killed from outside, as the system does when memory runs out", False),
    ],
)
def test_what_says_that_memory_ran_out(kind: str, message: str, is_one: bool) -> None:
    assert is_out_of_memory(kind, message) is is_one
