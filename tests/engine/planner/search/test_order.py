"""What a goal puts first, of points that are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.hardware import GIB
from engine.planner.batch import Batch
from engine.planner.mesh import Mesh
from engine.planner.search import Question
from engine.planner.search.evaluate import Point
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options
from engine.planner.search.order import economical_batches, pareto, ranked
from engine.planner.timing import Time

FSDP = Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1))
TP = Layout(mesh=Mesh(pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2))
PP = Layout(mesh=Mesh(pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1))

Ask = Callable[..., Question]


def point(
    layout: Layout,
    gib: float,
    rate: float | None,
    *,
    local: int = 1,
    options: Options = Options(compiled=True),  # noqa: B008
) -> Point:
    return Point(
        layout=layout,
        options=options,
        batch=Batch(local=local, microbatch=local),
        needed_bytes=int(gib * GIB),
        time=Time(),
        tokens_per_s_per_gpu=rate,
    )


@pytest.mark.parametrize(("gain", "first"), [(1.05, FSDP), (1.2, PP)])
def test_production_wants_a_pipeline_to_win_clearly(ask: Ask, gain: float, first: Layout) -> None:
    points = [point(PP, 40, 100 * gain), point(FSDP, 40, 100)]
    assert next(ranked(ask("production"), points)).layout == first


def test_max_performance_wants_the_fastest(ask: Ask) -> None:
    points = [point(FSDP, 40, 100), point(PP, 40, 103)]
    assert next(ranked(ask("max-performance"), points)).layout == PP


def test_of_layouts_as_fast_as_each_other_the_simplest_is_first(ask: Ask) -> None:
    points = [point(TP, 30, 100.4), point(FSDP, 40, 100)]
    assert next(ranked(ask("max-performance"), points)).layout == FSDP


def test_what_leaves_the_room_of_the_goal_comes_before_what_is_faster(ask: Ask) -> None:
    points = [point(FSDP, 72, 150), point(FSDP, 60, 100, local=2)]
    assert [each.tokens_per_s_per_gpu for each in ranked(ask("production"), points)] == [100, 150]


def test_a_prototype_recomputes_before_it_splits_a_layer(ask: Ask) -> None:
    points = [point(TP, 20, 200, options=Options()), point(FSDP, 60, 100, options=Options(mode="full"))]
    assert next(ranked(ask("prototype"), points)).layout == FSDP


def test_of_equally_simple_ways_a_prototype_takes_the_fastest_with_the_smallest_batch(ask: Ask) -> None:
    full, selective = Options(mode="full"), Options(mode="selective")
    points = [
        point(FSDP, 30, 100, options=full),
        point(FSDP, 50, 115, options=selective),
        point(FSDP, 55, 120, options=full, local=2),
    ]
    assert [each.tokens_per_s_per_gpu for each in ranked(ask("prototype"), points)] == [115, 100, 120]


def test_a_larger_batch_has_to_gain_a_percent(ask: Ask) -> None:
    points = [point(FSDP, 20, 100), point(FSDP, 30, 110, local=2), point(FSDP, 40, 110.5, local=4)]
    assert [each.batch.local for each in economical_batches(ask(), points)] == [2]


def test_a_batch_that_only_fits_does_not_push_out_one_that_leaves_room(ask: Ask) -> None:
    points = [point(FSDP, 60, 100), point(FSDP, 72, 110, local=2)]
    assert [each.batch.local for each in economical_batches(ask("production"), points)] == [1, 2]


def test_where_no_speed_is_known_a_batch_keeps_the_machine_busy(ask: Ask) -> None:
    points = [point(FSDP, 1, None, local=size) for size in (1, 2, 4, 8)]
    assert [each.batch.local for each in economical_batches(ask(training__seq_len=512), points)] == [4]


def test_the_front_has_no_layout_that_another_beats_nor_one_that_is_half_as_fast() -> None:
    points = [point(FSDP, 40, 100), point(TP, 50, 90), point(TP, 30, 80, local=2), point(PP, 10, 40)]
    assert [each.tokens_per_s_per_gpu for each in pareto(points, 8)] == [100, 80]
