"""The bound of a layout's speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.planner.mesh import Mesh
from engine.planner.search import Question
from engine.planner.search.bound import Bound
from engine.planner.search.evaluate import Ways
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options
from engine.shapes import shape_of

LAYOUTS = (
    Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1)),
    Layout(mesh=Mesh(pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2)),
    Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=2, cp=2, tp=2)),
    Layout(mesh=Mesh(pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1)),
    Layout(mesh=Mesh(pp=4, dp_replicate=1, dp_shard=1, cp=1, tp=2), schedule="Interleaved1F1B", stages_a_rank=2),
    Layout(mesh=Mesh(pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1), schedule="ZBVZeroBubble", stages_a_rank=2),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.mesh.pp}-{layout.schedule}")
@pytest.mark.parametrize(
    "options", [Options(), Options(mode="full", compiled=True, float8=True)], ids=("plain", "bold")
)
def test_no_batch_of_a_layout_is_faster_than_its_bound(
    ask: Callable[..., Question], layout: Layout, options: Options
) -> None:
    question = ask(training__local_batch_size="auto")
    ways = Ways(question.config, question.cluster, shape_of(question.config.model))
    bound = Bound(question.config, question.cluster, ways).tokens_per_s(layout, options)
    for microbatch in (1, 4):
        way = ways.of(layout, options, microbatch if layout.mesh.pp > 1 else None)
        points = [way.point(batch, 0, cluster=question.cluster) for batch in way.batches]
        assert 0 < max(point.tokens_per_s_per_gpu or 0.0 for point in points) <= bound
