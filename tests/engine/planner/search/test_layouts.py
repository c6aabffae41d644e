"""The layouts of a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.keys import with_values
from engine.planner.schedule import stages_of_a_rank
from engine.planner.search import Question
from engine.planner.search.layouts import layouts, meshes
from engine.shapes import shape_of


def test_degrees_multiply_to_the_world_and_none_comes_twice(ask: Callable[..., Question]) -> None:
    question = ask(cluster__nodes=3)
    found = list(meshes(question, shape_of(question.config.model)))
    assert {mesh.world_size for mesh in found} == {24}
    assert len(set(found)) == len(found) > 30


def test_all_five_axes_are_used(ask: Callable[..., Question]) -> None:
    question = ask(cluster__nodes=4)
    found = list(meshes(question, shape_of(question.config.model)))
    assert all(
        {getattr(mesh, axis) for mesh in found} >= {1, 2} for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    )


def test_tensor_ranks_stay_in_a_node(ask: Callable[..., Question]) -> None:
    question = ask(cluster__nodes=4, cluster__gpus_per_node=2)
    assert max(mesh.tp for mesh in meshes(question, shape_of(question.config.model))) == 2


def test_stages_are_those_that_the_keys_make(ask: Callable[..., Question]) -> None:
    question = ask(model__flavor="405B", cluster__nodes=64)
    shape = shape_of(question.config.model)
    for layout in {layout for layout in layouts(question, shape) if layout.mesh.dp_replicate == layout.mesh.cp == 1}:
        config = with_values(question.config, layout.values())
        assert stages_of_a_rank(config.parallelism, shape.n_layers) == layout.stages_a_rank


@pytest.mark.parametrize(
    ("fixed", "count"),
    [
        ({"parallelism.tensor_parallel_degree": 2, "parallelism.pipeline_parallel_degree": 2}, 3),
        ({"parallelism.data_parallel_shard_degree": 8}, 1),
        ({"parallelism.tensor_parallel_degree": 3}, 0),
    ],
)
def test_degrees_that_are_given_leave_the_others_open(
    ask: Callable[..., Question], fixed: dict[str, Any], count: int
) -> None:
    question = ask(fixed=fixed)
    found = list(meshes(question, shape_of(question.config.model)))
    assert len(found) == count


@pytest.mark.parametrize(("layers", "stages"), [(4, {"1F1B": 1}), (2, {"ZBVZeroBubble": 2, "DualPipeV": 2}), (1, {})])
def test_layers_that_are_given_leave_only_schedules_that_take_their_stages(
    ask: Callable[..., Question], layers: int, stages: dict[str, int]
) -> None:
    fixed = {"parallelism.pipeline_parallel_degree": 8, "parallelism.pipeline_parallel_layers_per_stage": layers}
    question = ask(fixed=fixed)
    found = {each.schedule: each.stages_a_rank for each in layouts(question, shape_of(question.config.model))}
    single, v_shaped = {"1F1B"}, {"ZBVZeroBubble", "DualPipeV"}
    assert {name: count for name, count in found.items() if name in single | v_shaped} == stages
    assert all(count == 8 * 4 // layers // 8 for count in found.values())
