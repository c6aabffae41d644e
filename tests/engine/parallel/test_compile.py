"""Compiled blocks give the figures of eager ones, and are compiled once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import Rows, tiny
from torch._dynamo.utils import counters

from engine.loop import fit
from engine.planner.plan import plan


def figures(arguments: dict[str, Any]) -> dict[str, Any]:
    """Loss and norm of five steps, and how many graphs were compiled for them."""
    counters.clear()
    config = tiny(**arguments)
    resolved = plan(config)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the compiler's own
        outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=dist.get_rank()))
    steps = torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps])
    return {"steps": steps, "graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


@pytest.mark.world
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_figures_are_those_of_eager(precision: str, gloo: GlooPool) -> None:
    arguments = {"processes": 2, "training__mixed_precision_param": precision, "model__shape__n_layers": 3}
    eager = gloo.run(2, figures, arguments=arguments)
    compiled = gloo.run(2, figures, arguments=arguments | {"compile__enable": True})
    # The compiler sums in another order, and in bfloat16 rounds less often.
    tolerance = 1e-5 if precision == "float32" else 3e-2
    torch.testing.assert_close(compiled[0]["steps"], eager[0]["steps"], rtol=tolerance, atol=0)
    assert eager[0]["graphs"] == 0
    assert compiled[0]["graphs"] == 2  # one for all blocks, one for the loss
    assert compiled[0]["breaks"] == {}


@pytest.mark.world
@pytest.mark.parametrize(("components", "graphs"), [(["model"], 1), (["loss"], 1)])
def test_only_the_components_asked_for_are_compiled(components: list[str], graphs: int, gloo: GlooPool) -> None:
    arguments = {"processes": 1, "compile__enable": True, "compile__components": components, "training__steps": 2}
    assert gloo.run(1, figures, arguments=arguments)[0]["graphs"] == graphs
