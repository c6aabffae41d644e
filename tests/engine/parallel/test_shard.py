"""Precision, groups and collectives of data parallelism."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from layouts import layout
from shares import mine
from synthetic import Rows, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import build
from engine.model.initial import initialise
from engine.planner.plan import plan
from engine.step import forward_backward

LAYOUTS = {"one": (1, 1, 1), "replicate": (2, 2, 1), "fsdp": (2, 1, 2), "hsdp": (4, 2, 2)}


def precision_in_force(arguments: dict[str, Any]) -> dict[str, Any]:
    """Dtypes seen by hooks in one step: weights in use, activations, loss, gradients and weights kept."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    (part,) = built.parts
    seen: dict[str, Any] = {}

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            weight = module.weight.dtype if hasattr(module, "weight") else None
            seen[name] = (inputs[0].dtype, weight, output.dtype)

        return hook

    for name, module in part.named_modules():
        if name in ("layers.0.attention.wq", "layers.1.feed_forward.w2", "layers.0.attention_norm", "norm", "output"):
            module.register_forward_hook(watch(name))
    forward_backward(built, Rows(config, resolved, data_rank=dist.get_rank()).batches(1) or [], torch.tensor(1.0))
    gradients = built.gradients
    return {
        "seen": seen,
        "kept": {weight.dtype for weight in built.weights.values()},
        "gradients": {gradient.dtype for gradient in gradients},
        "rounded": all(
            torch.equal(mine(gradient).bfloat16().float(), mine(gradient).float()) for gradient in gradients
        ),
    }


@pytest.mark.world
@pytest.mark.parametrize("name", LAYOUTS)
def test_mixed_precision_is_in_force_in_every_layout(name: str, gloo: GlooPool) -> None:
    arguments = layout(*LAYOUTS[name], training__mixed_precision_param="bfloat16")
    for rank in gloo.run(LAYOUTS[name][0], precision_in_force, arguments=arguments):
        assert len(rank["seen"]) == 5
        # The head gives the loss, which is summed in float32 from logits that are not.
        assert rank["seen"].pop("output") == (torch.bfloat16, torch.bfloat16, torch.float32)
        assert set(rank["seen"].values()) == {(torch.bfloat16,) * 3}
        assert rank["kept"] == {torch.float32}
        # Alone, with one backward, nothing is summed: a gradient stays what the products gave.
        assert rank["gradients"] == ({torch.bfloat16} if name == "one" else {torch.float32})


@pytest.mark.world
@pytest.mark.parametrize("name", ["replicate", "fsdp", "hsdp"])
@pytest.mark.parametrize("reduce", ["bfloat16", "float32"])
def test_gradients_are_summed_in_the_precision_of_the_config(name: str, reduce: str, gloo: GlooPool) -> None:
    arguments = layout(
        *LAYOUTS[name], training__mixed_precision_param="bfloat16", training__mixed_precision_reduce=reduce
    )
    rank = gloo.run(LAYOUTS[name][0], precision_in_force, arguments=arguments)[0]
    assert rank["rounded"] == (reduce == "bfloat16")


@pytest.mark.world
def test_float32_is_in_force_where_asked(gloo: GlooPool) -> None:
    rank = gloo.run(2, precision_in_force, arguments=layout(2, 1, 2))[0]
    assert set(rank["seen"].values()) == {(torch.float32,) * 3}


class Collectives(TorchDispatchMode):
    """Counts the collectives that are issued within it, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func.__name__.partition(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def collectives_of_a_step(arguments: dict[str, Any]) -> dict[str, int]:
    """Collectives of one forward and backward, by kind."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = Rows(config, resolved, data_rank=dist.get_rank()).batches(1) or []
    forward_backward(built, batches, torch.tensor(1.0))  # the first one settles lazy state
    with Collectives() as seen, warnings.catch_warnings():
        # Only under a dispatch mode are the logits a view, of which FSDP warns.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        forward_backward(built, batches, torch.tensor(1.0))
    return dict(seen.counts)


@pytest.mark.world
@pytest.mark.parametrize(("policy", "gathers"), [("never", 4), ("default", 4 + 2), ("always", 4 + 2 + 1)])
def test_resharding_gathers_again_in_backward_but_never_the_embedding(
    policy: str, gathers: int, gloo: GlooPool
) -> None:
    # Groups: embedding, two blocks, norm with head.
    arguments = layout(2, 1, 2, parallelism__fsdp_reshard_after_forward=policy)
    counts = gloo.run(2, collectives_of_a_step, arguments=arguments)[0]
    print(counts)
    assert counts == {"allgather_base": gathers, "reduce_scatter_base": 4}


@pytest.mark.world
def test_copies_sum_gradients_only_in_the_last_accumulation_step(gloo: GlooPool) -> None:
    arguments = layout(4, 2, 2, training__local_batch_size=1)  # two accumulation steps
    counts = gloo.run(4, collectives_of_a_step, arguments=arguments)[0]
    reduced = {kind: n for kind, n in counts.items() if "reduce" in kind}
    assert sum(n for kind, n in reduced.items() if "scatter" in kind) == 2 * 4
    assert sum(n for kind, n in reduced.items() if "scatter" not in kind) == 4


def collectives_of_initialising() -> int:
    """Collectives while weights are filled."""
    config = tiny(2)
    built = build(config, plan(config), torch.device("cpu"))
    with Collectives() as seen:
        initialise(built.parts[0], seed=3)
    return sum(seen.counts.values())


@pytest.mark.world
def test_initialising_needs_no_communication(gloo: GlooPool) -> None:
    assert gloo.run(2, collectives_of_initialising) == [0, 0]
