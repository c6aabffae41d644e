"""One way to run one layout, worked out as the search does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.keys import with_values
from engine.planner.mesh import Mesh
from engine.planner.plan import plan
from engine.planner.search import Question
from engine.planner.search.evaluate import Ways
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options
from engine.shapes import shape_of

WAYS = [
    (Layout(mesh=Mesh(pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2)), Options(mode="selective", compiled=True)),
    (Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=4, cp=2, tp=1)), Options(mode="full", float8=True)),
    (Layout(mesh=Mesh(pp=4, dp_replicate=1, dp_shard=2, cp=1, tp=1)), Options(reshard="always")),
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
    for batch in way.batches()[:2]:
        point = way.point(batch, way.needed_bytes(batch), cluster=question.cluster)
        planned = plan(with_values(question.config, point.values()), question.cluster)
        needed = max(stage.memory.needed_bytes for stage in planned.stages)
        assert (point.tokens_per_s_per_gpu, point.needed_bytes) == (planned.tokens_per_s_per_gpu, needed)


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
        for batch in first.batches():
            assert first.needed_bytes(batch) <= other.needed_bytes(batch)
            rates = [way.point(batch, 0, cluster=question.cluster).tokens_per_s_per_gpu for way in (first, other)]
            assert (rates[0] or 0.0) >= 0.999 * (rates[1] or 0.0)
