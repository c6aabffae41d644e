"""A rank on fake tensors is the rank that trains: it holds the same bytes, and fails at the same place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fresh import fresh
from gloo_pool import GlooPool
from parity import SHAPE, data_rank
from synthetic import Rows, tiny
from torch.distributed.tensor import DTensor

import engine.build
from engine.build import build
from engine.dry.holding import Holding
from engine.dry.rank import step_rank, take_step
from engine.planner.plan import plan

KEYS = {
    "rep": "data_parallel_replicate_degree",
    "dp": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
}

# gloo holds a message until its thread is done with it; most often that is not at the fullest moment, and then both
# are equal to the byte. A message here is 8 KiB at most, and a rank holds 0.8 MB or more.
LATE_MESSAGES = 1.03


def layout(**degrees: int) -> dict[str, Any]:
    """Arguments of `tiny`, for all degrees."""
    processes = 1
    for degree in degrees.values():
        processes *= degree
    axes = {f"parallelism__{key}": degrees.get(name, 1) for name, key in KEYS.items()}
    return {"processes": processes, **SHAPE, "training__local_batch_size": 4, "training__global_batch_size": -1, **axes}


def dry(arguments: dict[str, Any], pp_rank: int = 0) -> dict[str, Any]:
    """The first rank of a pipeline rank, on fake tensors."""
    config = tiny(**arguments)
    found = step_rank(config, plan(config), pp_rank)
    return {"error": found.error, "parameters": found.parameters, "peak": found.peak, "peaks": found.peaks_bytes}


def real(arguments: dict[str, Any]) -> dict[str, int]:
    """Peaks of this rank, which trains: what it holds is counted in the same way."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    rows = Rows(config, resolved, data_rank=data_rank(arguments)).batches(1)
    assert rows is not None
    holding = Holding()
    computed = [held for part in built.parts for held in (*part.parameters(), *part.buffers())]
    for held in (*built.weights.values(), *computed):
        holding.add(held.to_local() if isinstance(held, DTensor) else held)
    take_step(config, built, rows, holding=holding, fake=nullcontext())
    dist.barrier()
    return holding.peaks_bytes


@pytest.mark.world
@pytest.mark.parametrize(
    "degrees",
    [{"dp": 2}, {"rep": 2, "dp": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"dp": 2, "tp": 2}, {"tp": 2, "pp": 2}],
    ids=lambda degrees: "_".join(f"{axis}{degree}" for axis, degree in degrees.items()),
)
def test_fake_rank_holds_what_a_real_one_holds(degrees: dict[str, int], gloo: GlooPool) -> None:
    arguments = layout(**degrees)
    ranks = gloo.run(arguments["processes"], real, arguments=arguments)
    fake = fresh(dry, arguments=arguments)
    assert fake["error"] is None
    for moment in ("forward", "backward", "optimizer"):
        assert 1.0 <= ranks[0][moment] / fake["peaks"][moment] <= LATE_MESSAGES, moment


@pytest.mark.world
@pytest.mark.parametrize("sequences", [4, 12])
@pytest.mark.parametrize("degrees", [{"tp": 2}, {"pp": 2}], ids=["tp2", "pp2"])
def test_fake_rank_holds_masters_copies_and_gradients_that_a_real_one_holds(
    degrees: dict[str, int], sequences: int, gloo: GlooPool
) -> None:
    precision = {"training__mixed_precision_param": "bfloat16", "training__global_batch_size": sequences}
    arguments = layout(**degrees) | precision
    ranks = gloo.run(2, real, arguments=arguments)
    fake = fresh(dry, arguments=arguments)
    assert fake["error"] is None
    for moment in ("forward", "backward", "optimizer"):
        assert 1.0 <= ranks[0][moment] / fake["peaks"][moment] <= LATE_MESSAGES, moment


@pytest.mark.parametrize("kernel", ["fused", "foreach"])
def test_only_a_gpus_fused_update_makes_nothing_beside_what_it_updates(kernel: str) -> None:
    precision = {"training__mixed_precision_param": "bfloat16", "optimizer__implementation": kernel}
    arguments = layout() | precision | {"processes": 1}
    on_cpu = fresh(dry, arguments=arguments)
    on_gpu = fresh(dry, arguments=arguments | {"cluster__gpu": "h200"})
    assert (on_cpu["error"], on_gpu["error"]) == (None, None)
    assert (on_gpu["peaks"]["optimizer"] < on_cpu["peaks"]["optimizer"]) == (kernel == "fused")


def test_c48_states_stand_beside_the_activations() -> None:
    arguments = layout(dp=2)
    config = tiny(**arguments)
    found = fresh(dry, arguments=arguments)["peak"]
    states_bytes = plan(config).memory.optimizer_bytes
    assert found.moment in ("forward", "backward")
    # Beside the states each weight has a count, one float32.
    assert 0 <= found.kind_bytes["optimizer_states"] - states_bytes <= 4 * 100


@pytest.mark.parametrize("implementation", ["fused", "foreach", "for-loop"])
def test_every_implementation_of_the_optimizer_takes_its_step(implementation: str) -> None:
    found = fresh(dry, arguments={**layout(dp=2), "optimizer__implementation": implementation})
    assert found["error"] is None
    assert found["peaks"]["optimizer"] > 0


def planted(layer: str) -> dict[str, Any]:
    """A pipeline rank of which one layer's attention gives heads that are too narrow."""
    before = engine.build.assert_promises

    def plant(*arguments: Any, parts: tuple[Any, ...], **others: Any) -> None:
        before(*arguments, parts=parts, **others)
        attention = next(part.layers[layer].attention for part in parts if layer in part.layers)
        core = attention.core
        attention.core = lambda *given: core(*given)[..., :-1]

    engine.build.assert_promises = plant
    return dry(layout(pp=2), pp_rank=1)


def test_error_names_layer_and_module_and_keeps_its_message() -> None:
    error = fresh(planted, layer="6")["error"]
    assert error.startswith("layer 6, attention.wo, in forward or backward: ")
    assert "[16, 24] X [32, 32]" in error


def broken_promise() -> dict[str, Any]:
    """A rank for which other weights were built than planned."""

    def break_it(*_: Any, **__: Any) -> None:
        raise AssertionError("other weights than planned")

    engine.build.assert_promises = break_it
    return dry(layout(dp=2))


def test_error_of_construction_says_so() -> None:
    found = fresh(broken_promise)
    assert (found["error"], found["parameters"]) == ("while it was built: other weights than planned", None)
