"""What stands beside each other at the points of a step; peaks as a whole are held to runs and dry runs elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.planner.activations import Work, block_bytes, kept_bytes
from engine.planner.in_flight import ALONE, Fullness
from engine.planner.load import Load, Moment
from engine.planner.memory import Memory
from engine.planner.moments import Moments
from engine.planner.recompute import Recompute
from engine.planner.sharding import Groups, Sharding
from engine.shapes import FLAVORS

SHAPE = FLAVORS["llama3"]["8B"]
WORK = Work(shape=SHAPE, tokens=4096)
NUMEL = 4 * 218_112_000 + 2 * 525_336_576
LOAD = Load(
    static=Memory(params_bytes=NUMEL, grads_bytes=NUMEL, optimizer_bytes=2 * NUMEL, capacity_bytes=1 << 40),
    work=WORK,
    recompute=Recompute(),
    groups=Groups(block=218_112_000, blocks=4, embedding=525_336_576, head=525_336_576),
    sharding=Sharding(
        fsdp=4,
        gathered_width_bytes=2,
        gathered_block_width_bytes=2,
        gradient_width_bytes=2,
        reduce_width_bytes=4,
        summed_width_bytes=4,
        keeps_gathered=False,
        sums_late=False,
        accumulates=False,
    ),
    stages=((0, 1, 2, 3),),
    states=ALONE,
    has_loss=True,
    pipelined=False,
    update_bytes=0,
    tables_bytes=0,
    places_bytes=0,
    has_streams=True,
)


def at(name: str, **changes: Any) -> list[Moment]:
    """The points of one moment."""
    return [moment for moment in Moments(replace(LOAD, **changes)) if moment.name == name]


def test_gradients_of_the_first_block_stand_beside_those_of_all_others() -> None:
    last, *_, first = at("backward of a block")
    assert first.grads_bytes - last.grads_bytes == 3 * 218_112_000
    assert last.activations_bytes > first.activations_bytes


def test_the_last_block_goes_back_while_the_gradient_of_the_head_is_on_its_way() -> None:
    last, _, before = at("backward of a block")[:3]
    assert last.communication_bytes - before.communication_bytes == 4 * (525_336_576 - 218_112_000)


def test_a_rank_without_the_head_has_no_loss() -> None:
    assert at("loss", has_loss=False) == at("gradient of the head", has_loss=False) == []


def test_an_accumulation_step_has_the_gradients_of_the_one_before() -> None:
    again = replace(LOAD.sharding, accumulates=True)
    assert {moment.grads_bytes for moment in Moments(replace(LOAD, sharding=again))} == {NUMEL}


WHOLE = replace(
    LOAD.sharding,
    fsdp=1,
    gathered_width_bytes=0,
    gathered_block_width_bytes=0,
    reduce_width_bytes=0,
    summed_width_bytes=2,
    whole=True,
)


def test_without_fsdp_gradients_stand_as_backward_leaves_them() -> None:
    found = list(Moments(replace(LOAD, sharding=WHOLE)))
    assert max(moment.grads_bytes for moment in found if moment.name != "optimizer") == 2 * (
        4 * 218_112_000 + 2 * 525_336_576
    )
    assert {moment.gathering_bytes for moment in found} == {0}
    assert "sum of gradients" not in {moment.name for moment in found}


def test_an_eager_backward_adds_one_weights_gradient_up_and_a_compiled_one_a_blocks() -> None:
    several = replace(WHOLE, summed_width_bytes=4, adds_up=True, accumulates=True)
    eager, compiled = (
        at(
            "backward of a block",
            sharding=several,
            work=replace(WORK, drops_gradients=True, compiled=compiled, compiled_loss=compiled),
        )[1].communication_bytes
        for compiled in (False, True)
    )
    assert (eager, compiled) == (2 * 4096 * 14336, 2 * 218_112_000)


def test_full_recomputation_keeps_inputs_and_makes_one_block_again() -> None:
    full = at("backward of a block", recompute=Recompute(mode="full"))[0]
    none = at("backward of a block")[0]
    assert none.activations_bytes - full.activations_bytes == 3 * (block_bytes(WORK) - WORK.stream_bytes)
    assert kept_bytes(WORK, Recompute(mode="full"), (0,)) == WORK.stream_bytes


def test_a_pipeline_keeps_whole_gradients_of_stages_that_went_back_before() -> None:
    late = replace(LOAD.sharding, sums_late=True)
    states = tuple(Fullness("B", 0, (2, 1), (0, 0), (False, graded), (False, False)) for graded in (False, True))
    few, many = (
        at("backward of a block", sharding=late, stages=((0, 1), (2, 3)), states=(state,), pipelined=True)[0]
        for state in states
    )
    second = 2 * 218_112_000 + 525_336_576
    assert many.communication_bytes - few.communication_bytes == 4 * second
