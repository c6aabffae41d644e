"""Saving what ranks hold: taking it sends nothing, and writing it sends no tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gloo_pool import GlooPool
from parity import axes, data_rank
from shares import gathered, mine
from synthetic import Rows, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.build import Built, build
from engine.planner.plan import plan
from engine.state import state_of
from engine.step import forward_backward, update_weights

LAYOUTS = {
    "fsdp2": {"dp": 2},
    "hsdp2x2": {"rep": 2, "dp": 2},
    "tp2": {"tp": 2},
    "fsdp2_tp2": {"dp": 2, "tp": 2},
    "fsdp2_pp2": {"dp": 2, "pp": 2},
    "fsdp2_cp2": {"dp": 2, "cp": 2},
}


def arguments_of(name: str) -> dict[str, Any]:
    """Arguments of `tiny` for a layout."""
    return {"training__local_batch_size": 2, "training__global_batch_size": -1, **axes(LAYOUTS[name])}


class Sent(TorchDispatchMode):
    """Collectives within it: name of each, and of the tensors it sends their kinds and bytes in all."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.kinds: set[torch.dtype] = set()
        self.total_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            self.names.append(func.name())
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            self.kinds |= {tensor.dtype for tensor in tensors}
            self.total_bytes += sum(tensor.nbytes for tensor in tensors)
        return func(*args, **(kwargs or {}))


def trained(arguments: dict[str, Any]) -> Built:
    """This rank's share after one step."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = Rows(config, resolved, data_rank=data_rank(arguments)).batches(1)
    assert batches is not None
    loss = forward_backward(built, batches, torch.ones(()))
    update_weights(built, loss=loss, lr=1e-3, max_norm=1.0)
    return built


def take(arguments: dict[str, Any]) -> dict[str, Any]:
    """Collectives of taking what this rank holds: after a step, before any, by name; and of taking it whole."""
    built = trained(arguments)
    fresh = build(tiny(**arguments), plan(tiny(**arguments)), torch.device("cpu"))
    with Sent() as after_a_step:
        taken = state_of(built)
    with Sent() as before_any:
        state_of(fresh)
    with Sent() as by_name:
        shares = {name: weight.detach() for name, weight in built.weights.items()}
    with Sent() as whole:
        assert all(gathered(value) is not None for value in taken.values())
    same = all(
        mine(taken[name]).untyped_storage()._cdata == mine(share).untyped_storage()._cdata
        for name, share in shares.items()
    )
    return {
        "names": [after_a_step.names, before_any.names, by_name.names],
        "gathered": len(whole.names),
        "same": same,
        "keys": taken.keys() >= built.weights.keys(),
    }


@pytest.mark.world
@pytest.mark.parametrize("layout", LAYOUTS)
def test_taking_a_sharded_state_sends_nothing(layout: str, gloo: GlooPool) -> None:
    arguments = arguments_of(layout)
    for rank in gloo.run(arguments["processes"], take, arguments=arguments):
        assert rank["names"] == [[], [], []]
        # The count sees collectives where there are any.
        assert rank["gathered"] > 0
        assert rank["keys"]
        assert rank["same"], "a weight was copied"


def write(arguments: dict[str, Any], folder: str) -> dict[str, Any]:
    """Collectives of writing what this rank holds."""
    taken = state_of(trained(arguments))
    with Sent() as sent:
        dcp.save(taken, checkpoint_id=folder)
    dist.barrier()
    return {"count": len(sent.names), "kinds": {str(kind) for kind in sent.kinds}, "bytes": sent.total_bytes}


@pytest.mark.world
@pytest.mark.parametrize("layout", ["fsdp2", "fsdp2_tp2"])
def test_writing_a_sharded_state_sends_no_tensor(layout: str, gloo: GlooPool, tmp_path: Path) -> None:
    arguments = arguments_of(layout)
    wide = {**arguments, "model__shape__dim": 128, "model__shape__ffn_dim": 408}
    ranks = gloo.run(arguments["processes"], write, arguments=arguments, folder=str(tmp_path / "small"))
    wider = gloo.run(arguments["processes"], write, arguments=wide, folder=str(tmp_path / "wide"))
    for rank, wide_rank in zip(ranks, wider, strict=True):
        # Plans as pickled bytes, and their lengths; all that is saved is float32.
        assert rank["kinds"] == {"torch.uint8", "torch.int64"}
        assert 0 < rank["count"] <= 20
        # With ten times the weights the plans are as long as before, but for the digits in them.
        assert wide_rank["bytes"] <= 1.05 * rank["bytes"]
