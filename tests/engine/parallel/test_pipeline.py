"""Pipelines give the gradients of one process, in every schedule, and keep no more than is under way.

Loss, norm and weights of the plain layouts are held in tests/engine/test_layouts.py; here is what goes with them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from parity import Layout, data_rank, measure
from shares import gathered, gradients_of
from synthetic import Rows, tiny
from torch import Tensor
from torch._dynamo.utils import counters
from torch.testing._internal.distributed.fake_pg import FakeStore

from engine.build import Built, build
from engine.config import ScheduleName
from engine.data.batch import IGNORE, Batch
from engine.loop import fit
from engine.parallel.pipeline import Pipeline, without_peers
from engine.planner.plan import plan
from engine.planner.schedule import SINGLE_STAGE, ZERO_BUBBLE
from engine.step import forward_backward

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
LOCAL_BATCH = "training__local_batch_size"


def scheduled(schedule: ScheduleName, *, pp: int = 2, dp: int = 1, rep: int = 1, **values: Any) -> Layout:
    """A row of the parity table; 8 sequences a step."""
    return Layout(
        name=f"{schedule} {pp} {dp} {rep} {values}",
        degrees={"pp": pp, "dp": dp, "rep": rep},
        values={"parallelism__pipeline_parallel_schedule": schedule, **values},
    )


# ---- equal to one process ----------------------------------------------------------------------


FULL_BACKWARDS = [schedule for schedule in SCHEDULES if schedule not in ZERO_BUBBLE]
ROWS: dict[str, Layout] = {
    **{f"accumulation_{schedule}": scheduled(schedule, **{LOCAL_BATCH: 4}) for schedule in SCHEDULES},
    **{
        f"copies_that_accumulate_{schedule}": scheduled(schedule, rep=2, **{LOCAL_BATCH: 2})
        for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
    },
    **{
        f"freed_after_forward_{schedule}": scheduled(
            schedule, dp=2, parallelism__fsdp_reshard_after_forward="always", **{LOCAL_BATCH: 2}
        )
        for schedule in FULL_BACKWARDS
    },
    **{
        # More stages than torch leaves gathered at a time.
        f"four_stages_a_rank_{schedule}": scheduled(schedule, dp=2, parallelism__pipeline_parallel_layers_per_stage=1)
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
    },
    "microbatches_of_two": scheduled("ZBVZeroBubble", parallelism__pipeline_parallel_microbatch_size=2),
    "loss_in_chunks": scheduled("ZBVZeroBubble", dp=2, training__loss_chunks=3),
    "recompute_full": scheduled("Interleaved1F1B", dp=2, activation_checkpoint__mode="full"),
    "recompute_selective": scheduled("1F1B", dp=2, activation_checkpoint__mode="selective"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the figures and weights of one process are kept for all rows."""
    return tmp_path_factory.mktemp("parity")


@pytest.mark.world
@pytest.mark.parametrize("name", ROWS)
def test_a_pipeline_trains_as_one_process_does(name: str, gloo: GlooPool, folder: Path) -> None:
    layers = 8 if "four_stages" in name else 4
    values = {"model__shape__n_layers": layers, "training__steps": 3}
    found = measure(gloo, ROWS[name], "SGD", folder=folder, values=values)
    # Initial weights are the same bits; then float32 sums are taken in another order.
    assert found.before == 0.0
    assert found.loss <= 1e-5
    assert found.norm <= 1e-5
    assert found.after <= 1e-5
    assert found.largest_share == 1.0
    assert len(found.names) == layers * 9 + 3


def stepped(arguments: dict[str, Any], document: int | None = None) -> tuple[Built, Tensor]:
    """Builds a rank and takes its gradients of one step; sequences hold documents of so many tokens."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    if document is not None:
        batches = [replace(batch, positions_BS=_positions(batch, document)) for batch in batches]
    valid = torch.tensor(float(sum(batch.valid_tokens for batch in batches)))
    return built, forward_backward(built, batches, valid)


def _positions(batch: Batch, document: int) -> np.ndarray[Any, Any]:
    """Positions that start again at each document; the first of a sequence is shorter the later its row."""
    rows, length = batch.tokens_BS.shape
    return (np.arange(rows)[:, None] + np.arange(length)) % document * (np.arange(length) > 0)


def gradients(arguments: dict[str, Any], document: int | None = None) -> dict[str, Tensor]:
    """The gradient of every weight that a rank holds."""
    built, _ = stepped(arguments, document)
    return {name: gathered(gradient) for name, gradient in gradients_of(built).items()}


def arguments_of(schedule: ScheduleName, pp: int = 2, **values: Any) -> dict[str, Any]:
    return {
        "processes": pp,
        "model__shape__n_layers": 4,
        "training__local_batch_size": 8,
        "parallelism__pipeline_parallel_degree": pp,
        "parallelism__pipeline_parallel_schedule": schedule,
        **values,
    }


def assert_equal_sums(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    """Every weight's gradient, on whichever rank it is, within 1e-6 of its largest element."""
    held, known = ({name: gradient for rank in ranks for name, gradient in rank.items()} for ranks in (found, expected))
    for name, gradient in known.items():
        torch.testing.assert_close(held[name], gradient, rtol=0, atol=1e-6 * float(gradient.abs().max()), msg=name)


BF16: dict[str, Any] = {"training__mixed_precision_param": "bfloat16"}
FLOAT8: dict[str, Any] = {
    "model__shape__ffn_dim": 96,
    "model__shape__vocab_size": 256,
    "quantize__dense__float8__enable": True,
    "quantize__dense__float8__emulate": True,
}


@pytest.fixture(scope="module")
def in_bf16(gloo: GlooPool) -> list[dict[str, Tensor]]:
    """Gradients of each rank of the plainest schedule."""
    return gloo.run(2, gradients, arguments=arguments_of("GPipe", **BF16))


@pytest.mark.world
@pytest.mark.parametrize("schedule", [schedule for schedule in SCHEDULES if schedule != "GPipe"])
def test_gradients_of_bf16_products_are_summed_in_float32_in_every_schedule(
    schedule: ScheduleName, gloo: GlooPool, in_bf16: list[dict[str, Tensor]]
) -> None:
    found = gloo.run(2, gradients, arguments=arguments_of(schedule, **BF16))
    # The same products of the same microbatches in another order: summed in bf16 they would be 3e-3 apart.
    assert_equal_sums(found, in_bf16)


@pytest.fixture(scope="module")
def in_float8(gloo: GlooPool) -> list[dict[str, Tensor]]:
    """The same with low-precision products."""
    return gloo.run(2, gradients, arguments=arguments_of("GPipe", **BF16, **FLOAT8))


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble"])
def test_low_precision_products_have_a_backward_in_two_parts(
    schedule: ScheduleName, gloo: GlooPool, in_float8: list[dict[str, Tensor]]
) -> None:
    found = gloo.run(2, gradients, arguments=arguments_of(schedule, **BF16, **FLOAT8))
    assert_equal_sums(found, in_float8)


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_every_stage_keeps_attention_inside_documents(schedule: ScheduleName, gloo: GlooPool) -> None:
    alone = gloo.run(1, gradients, arguments=arguments_of("1F1B", 1), document=5)[0]
    without = gloo.run(1, gradients, arguments=arguments_of("1F1B", 1))[0]
    for rank in gloo.run(2, gradients, arguments=arguments_of(schedule), document=5):
        for name, gradient in rank.items():
            largest = float(gradient.abs().max())
            torch.testing.assert_close(gradient, alone[name], rtol=0, atol=1e-5 * largest, msg=name)
            assert float((gradient - without[name]).abs().max()) > 1e-3 * largest


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "ZBVZeroBubble"])
def test_the_norms_of_queries_and_keys_get_their_gradients(schedule: ScheduleName, gloo: GlooPool) -> None:
    values = {"model__name": "qwen3", "model__shape__tie_embeddings": False}
    alone = gloo.run(1, gradients, arguments=arguments_of("1F1B", 1, **values))[0]
    for rank in gloo.run(2, gradients, arguments=arguments_of(schedule, **values)):
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name], rtol=0, atol=1e-6, msg=name)


def planted(arguments: dict[str, Any]) -> float | None:
    """The gradient of one weight of the head, when each sequence's only label is its gradient; None without head."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))

    def loss(h_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        return h_BSD.sum().float() * 0.0 + weight_VD[0, 0] * labels_BS[labels_BS != IGNORE].sum()

    for part in built.parts:
        if part.output is not None:
            part.output.loss = loss
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    values = iter([4, 8, 12, 16])
    for batch in batches:
        batch.labels_BS[:] = IGNORE
        for row in batch.labels_BS:
            row[0] = next(values)
    forward_backward(built, batches, torch.tensor(4.0))
    gradient = gradients_of(built).get("output.weight")
    return None if gradient is None else float(gathered(gradient)[0, 0])


@pytest.mark.world
@pytest.mark.parametrize("schedule", [schedule for schedule in SCHEDULES if schedule != "DualPipeV"])
def test_c19_microbatches_and_accumulation_steps_weigh_alike(schedule: ScheduleName, gloo: GlooPool) -> None:
    values = {"training__local_batch_size": 2, "training__global_batch_size": 4}
    found = gloo.run(2, planted, arguments=arguments_of(schedule, **values))
    assert [gradient for gradient in found if gradient is not None] == [10.0]


@pytest.mark.world
def test_c19_a_pipeline_accumulates_as_one_process_does(gloo: GlooPool) -> None:
    values = {"training__local_batch_size": 1, "training__global_batch_size": 4}
    assert gloo.run(1, planted, arguments=arguments_of("1F1B", 1, **values)) == [10.0]


def shown(arguments: dict[str, Any]) -> list[float]:
    """The losses that a rank writes, with the settings that nobody set left as they are."""
    config = tiny(**arguments)
    resolved = plan(config)
    source = Rows(config, resolved, data_rank=data_rank(arguments))
    return [step["loss"] for step in fit(config, resolved, source=source).steps]


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_c25_every_rank_shows_the_loss_from_the_first_step_on(schedule: ScheduleName, gloo: GlooPool) -> None:
    axes = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel")
    values = {f"parallelism__{axis}_degree": 1 for axis in axes} | {"training__steps": 2}
    first, second = gloo.run(2, shown, arguments=arguments_of(schedule, **values))
    assert first == second
    # ln of a vocabulary of 259 is 5.56.
    assert first == pytest.approx([5.56, 5.56], abs=0.2)


# ---- compiled ----------------------------------------------------------------------------------


def compiled(arguments: dict[str, Any]) -> dict[str, Any]:
    """Loss and norm of each step, and how often the compiler ran."""
    torch._dynamo.reset()
    counters.clear()
    config = tiny(**arguments)
    resolved = plan(config)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the compiler's own
        outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=0))
    steps = torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps])
    return {"steps": steps, "graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B"])
def test_compiled_blocks_of_a_pipeline_give_the_figures_of_eager_ones(schedule: ScheduleName, gloo: GlooPool) -> None:
    eager = gloo.run(2, compiled, arguments=arguments_of(schedule, training__steps=3))
    ranks = gloo.run(2, compiled, arguments=arguments_of(schedule, training__steps=3, compile__enable=True))
    for rank in ranks:
        # The compiler sums in another order.
        torch.testing.assert_close(rank["steps"], eager[0]["steps"], rtol=1e-5, atol=0)
        assert rank["breaks"] == {}
    # One graph for all blocks of a rank, and on the last one for the loss.
    assert [rank["graphs"] for rank in ranks] == [1, 2]


# ---- what is sent and kept -----------------------------------------------------------------------


def sums_over_copies(arguments: dict[str, Any]) -> int:
    """How often FSDP sums gradients over copies of the model in a step."""
    calls = 0
    real = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*args, **kwargs)

    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    dist.all_reduce = counting
    try:
        forward_backward(built, batches, torch.ones(()))
    finally:
        dist.all_reduce = real
    return calls


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_copies_sum_their_gradients_in_the_last_accumulation_step_only(schedule: ScheduleName, gloo: GlooPool) -> None:
    values = {"parallelism__data_parallel_replicate_degree": 2, "processes": 4}
    once = gloo.run(4, sums_over_copies, arguments=arguments_of(schedule, **values, **{LOCAL_BATCH: 4}))
    twice = gloo.run(4, sums_over_copies, arguments=arguments_of(schedule, **values, **{LOCAL_BATCH: 2}))
    assert min(once) > 0
    assert once == twice


def buffers(arguments: dict[str, Any]) -> tuple[int, int, int]:
    """Most receive buffers that a rank holds at a time, those left after a step, and microbatches."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    pipeline = built.pipeline
    assert pipeline is not None
    most = 0

    def held() -> int:
        tables = [table for stage in pipeline.stages for table in (stage.args_recv_info, stage.grad_recv_info)]
        received = [info for table in tables for row in table.values() for info in row]
        # In 2.11 tokens have a place of their own, without a buffer.
        return sum(getattr(info, "buffer", None) is not None for info in received)

    def watch(*_: Any) -> None:
        nonlocal most
        most = max(most, held())

    for part in built.parts:
        part.register_forward_hook(watch)
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    # The first step makes them all, before there is anything else.
    forward_backward(built, batches, torch.ones(()))
    most = 0
    forward_backward(built, batches, torch.ones(()))
    return most, held(), resolved.microbatches


@pytest.mark.world
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_buffers_are_there_for_microbatches_under_way_only(schedule: ScheduleName, gloo: GlooPool) -> None:
    for most, after, microbatches in gloo.run(2, buffers, arguments=arguments_of(schedule)):
        assert microbatches == 8
        # Breadth first, a stage gets all its microbatches before it is its turn.
        assert most <= (8 if schedule == "LoopedBFS" else 3)
        assert after == 0


@pytest.mark.world
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_without_the_last_part_has_no_loss(schedule: ScheduleName, gloo: GlooPool) -> None:
    whole = gloo.run(1, loss_of, arguments=arguments_of("1F1B", 1))[0]
    losses = gloo.run(2, loss_of, arguments=arguments_of(schedule))
    assert sorted(losses)[0] == 0.0
    assert sum(losses) == pytest.approx(whole, rel=1e-6)


def loss_of(arguments: dict[str, Any]) -> float:
    """This rank's sum of losses."""
    _, loss = stepped(arguments)
    assert loss.dtype == torch.float64
    return float(loss)


class PartError(RuntimeError):
    """What a part may raise."""


# ---- without the others --------------------------------------------------------------------------


@contextmanager
def nobody(rank: int, world_size: int) -> Iterator[None]:
    """A process group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_runs_without_peers(schedule: ScheduleName, rank: int) -> None:
    config = tiny(**arguments_of(schedule))
    resolved = plan(config)
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    with nobody(rank, 2):
        built = build(config, resolved, torch.device("cpu"))
        assert built.pipeline is not None
        without_peers(built.pipeline)
        forward_backward(built, batches, torch.ones(()))
        assert len(built.gradients) == len(built.weights)


def broken(pipeline: Pipeline) -> None:
    """Makes the first part of a rank fail in forward."""

    def fails(*_: Any) -> None:
        raise PartError("no such kernel")

    pipeline.stages[0].submod.register_forward_pre_hook(fails)


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B"])
def test_what_a_part_raises_is_raised_as_it_is(schedule: ScheduleName) -> None:
    config = tiny(**arguments_of(schedule))
    resolved = plan(config)
    batches = Rows(config, resolved, data_rank=0).batches(1)
    assert batches is not None
    with nobody(0, 2):
        built = build(config, resolved, torch.device("cpu"))
        assert built.pipeline is not None
        without_peers(built.pipeline)
        broken(built.pipeline)
        with pytest.raises(PartError, match="no such kernel"):
            forward_backward(built, batches, torch.ones(()))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_has_a_stage_for_each_of_its_parts(schedule: ScheduleName) -> None:
    config = tiny(**arguments_of(schedule))
    with nobody(1, 2):
        built = build(config, plan(config), torch.device("cpu"))
    assert built.pipeline is not None
    assert [stage.submod for stage in built.pipeline.stages] == list(built.parts)
    assert len(built.parts) == (1 if schedule in SINGLE_STAGE else 2)
