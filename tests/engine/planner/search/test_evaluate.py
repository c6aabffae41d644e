"""One way to run one layout, worked out as the search does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.keys import with_values
from engine.planner.mesh import Mesh
from engine.planner.plan import plan
from engine.planner.search import Question
from engine.planner.search.evaluate import Ways
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options, all_options
from engine.shapes import shape_of

WAYS = [
    (Layout(mesh=Mesh(pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2)), Options(mode="selective", compiled=True)),
    (Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=4, cp=2, tp=1)), Options(mode="full", float8=True)),
    (Layout(mesh=Mesh(pp=4, dp_replicate=1, dp_shard=2, cp=1, tp=1)), Options(reshard="always")),
    (Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=8)), Options(reshard="always", compiled=True)),
    (
        Layout(
            mesh=Mesh(pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2),
            schedule="Interleaved1F1B",
            stages_a_rank=4,
            layers_per_stage=4,
        ),
        Options(compiled=True, async_tp=True),
    ),
    (
        Layout(mesh=Mesh(pp=4, dp_replicate=1, dp_shard=2, cp=1, tp=1), schedule="ZBVZeroBubble", stages_a_rank=2),
        Options(),
    ),
]


@pytest.mark.parametrize(("layout", "options"), WAYS, ids=lambda value: getattr(value, "schedule", ""))
def test_speed_and_memory_are_those_of_the_plan(ask: Callable[..., Question], layout: Layout, options: Options) -> None:
    question = ask(training__local_batch_size="auto")
    way = Ways(question.config, question.cluster, shape_of(question.config.model)).of(layout, options, 2)
    for batch in way.batches[:2]:
        point = way.point(batch, way.needed_bytes(batch), cluster=question.cluster)
        planned = plan(with_values(question.config, point.values()), question.cluster)
        needed = max(stage.memory.needed_bytes for stage in planned.stages)
        assert (point.tokens_per_s_per_gpu, point.needed_bytes) == (planned.tokens_per_s_per_gpu, needed)


def test_copies_for_each_use_take_less_memory_and_more_time(ask: Callable[..., Question]) -> None:
    question = ask(training__local_batch_size="auto")
    ways = Ways(question.config, question.cluster, shape_of(question.config.model))
    layout = Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=8))
    kept, made = (ways.of(layout, Options(reshard=reshard)) for reshard in ("default", "always"))
    batch = kept.batches[0]
    # Two bytes of every block and of the table, over eight tensor ranks: it is fullest where no block computes.
    saved = 2 * (32 * 218_112_000 + 525_336_576) // 8
    assert kept.needed_bytes(batch) - made.needed_bytes(batch) == pytest.approx(saved, rel=0.01)
    slow, fast = (way.point(batch, way.needed_bytes(batch), cluster=question.cluster) for way in (made, kept))
    assert slow.tokens_per_s_per_gpu < fast.tokens_per_s_per_gpu


def test_copies_are_made_for_each_use_where_there_are_any(ask: Callable[..., Question]) -> None:
    one = Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=8))
    assert {option.reshard for option in all_options(ask(), one)} == {"default", "always"}
    same = ask(training__mixed_precision_param="float32")
    assert {option.reshard for option in all_options(same, one)} == {"default"}


@pytest.mark.parametrize(("plain", "whole"), [("1F1B", "GPipe"), ("Interleaved1F1B", "LoopedBFS")])
def test_schedules_that_hold_every_microbatch_are_never_better(
    ask: Callable[..., Question], plain: str, whole: str
) -> None:
    question = ask(training__local_batch_size="auto")
    ways = Ways(question.config, question.cluster, shape_of(question.config.model))
    stages = 1 if plain == "1F1B" else 2
    for pp in (2, 8):
        mesh = Mesh(pp=pp, dp_replicate=1, dp_shard=8 // pp, cp=1, tp=1)
        first, other = (
            ways.of(Layout(mesh=mesh, schedule=name, stages_a_rank=stages), Options(mode="full"), 1)  # type: ignore[arg-type]
            for name in (plain, whole)
        )
        for batch in first.batches:
            assert first.needed_bytes(batch) <= other.needed_bytes(batch)
            rates = [way.point(batch, 0, cluster=question.cluster).tokens_per_s_per_gpu for way in (first, other)]
            assert (rates[0] or 0.0) >= 0.999 * (rates[1] or 0.0)


@st.composite
def some_way(draw: st.DrawFn) -> tuple[Layout, Options, int]:
    """A layout, what it is run with, and a microbatch."""
    tp, cp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    replicas = draw(st.sampled_from([1, 2]))
    mesh = Mesh(pp=pp, dp_replicate=replicas, dp_shard=draw(st.sampled_from([1, 2, 8])), cp=cp, tp=tp)
    schedule = draw(st.sampled_from(["1F1B", "Interleaved1F1B", "InterleavedZeroBubble"])) if pp > 1 else "1F1B"
    options = Options(
        mode="none" if schedule == "InterleavedZeroBubble" else draw(st.sampled_from(["none", "selective", "full"])),
        reshard=draw(st.sampled_from(["default", "always", "never"])),
        float8=draw(st.booleans()),
        compiled=draw(st.booleans()),
    )
    layout = Layout(mesh=mesh, schedule=schedule, stages_a_rank=1 if schedule == "1F1B" else 2)
    return layout, options, draw(st.sampled_from([1, 2, 4]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=some_way())
def test_a_larger_batch_or_microbatch_or_less_recomputation_never_needs_less_memory(
    ask: Callable[..., Question], drawn: tuple[Layout, Options, int]
) -> None:
    layout, options, microbatch = drawn
    question = ask(training__local_batch_size="auto", cluster__nodes=4, model__flavor="8B")
    ways = Ways(question.config, question.cluster, shape_of(question.config.model))

    def needed(options: Options, size: int) -> list[int]:
        way = ways.of(layout, options, size if layout.mesh.pp > 1 else None)
        return [way.needed_bytes(batch) for batch in way.batches]

    found = needed(options, microbatch)
    assert found == sorted(found)
    if layout.mesh.pp > 1:
        assert found[0] <= needed(options, 2 * microbatch)[0]
    assert needed(replace(options, mode="full"), microbatch)[0] <= found[0]


def test_a_rank_that_does_not_fit_is_told_by_more_than_was_enough(ask: Callable[..., Question]) -> None:
    question = ask(training__local_batch_size="auto")
    way = Ways(question.config, question.cluster, shape_of(question.config.model)).of(*WAYS[0])
    batch = way.batches[0]
    whole = way.needed_bytes(batch)
    assert way.needed_bytes(batch, enough=whole) == whole
    assert whole // 2 < way.needed_bytes(batch, enough=whole // 2) <= whole
