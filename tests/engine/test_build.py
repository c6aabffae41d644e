"""What is built is what was planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool, RankFailedError
from layouts import layout
from shares import gathered, mine
from synthetic import tiny

from engine.build import build
from engine.planner.plan import plan
from engine.shapes import part_parameters


def whole_weights(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Builds on this rank; every weight gathered."""
    config = tiny(**arguments)
    built = build(config, plan(config), torch.device("cpu"))
    return {name: gathered(weight) for name, weight in built.weights.items()}


@pytest.fixture(scope="module")
def whole(gloo: GlooPool) -> dict[str, torch.Tensor]:
    """The weights of one process."""
    found: dict[str, torch.Tensor] = gloo.run(1, whole_weights, arguments=layout(1, 1, 1))[0]
    return found


@pytest.mark.world
@pytest.mark.parametrize("degrees", [(2, 2, 1), (2, 1, 2), (4, 4, 1), (4, 1, 4), (4, 2, 2)])
def test_c29_weights_are_equal_bit_for_bit_in_every_layout(
    degrees: tuple[int, int, int], gloo: GlooPool, whole: dict[str, torch.Tensor]
) -> None:
    for rank in gloo.run(degrees[0], whole_weights, arguments=layout(*degrees)):
        assert rank.keys() == whole.keys()
        assert [name for name in whole if not torch.equal(rank[name], whole[name])] == []


def test_c29_no_two_rows_and_no_two_layers_are_equal(whole: dict[str, torch.Tensor]) -> None:
    rows = [tuple(row.tolist()) for weight in whole.values() if weight.ndim == 2 for row in weight]
    assert len(set(rows)) == len(rows)


@pytest.mark.world
def test_c15_tied_weights_are_one_weight_after_building(gloo: GlooPool) -> None:
    names = gloo.run(2, whole_weights, arguments=layout(2, 1, 2, model__shape__tie_embeddings=True))[0]
    assert "tok_embeddings.weight" in names
    assert "output.weight" not in names


def tied_after_steps(arguments: dict[str, Any]) -> list[bool]:
    """Whether head and embedding are one storage after building and after each of three steps."""
    from synthetic import Rows

    from engine.optim import update
    from engine.step import forward_backward

    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    (part,) = built.parts
    source = Rows(config, resolved, data_rank=dist.get_rank())
    found = [_one_storage(part)]
    for step in (1, 2, 3):
        forward_backward(built, source.batches(step) or [], torch.tensor(1.0))
        update(built.optimizer, built.gradients, lr=0.1, divisor=None, bad=torch.tensor(0.0))
        built.zero_grad()
        for module in (part.tok_embeddings, part.output, part):
            if hasattr(module, "reshard"):
                module.reshard()
        found.append(_one_storage(part))
    return found


def _one_storage(part: Any) -> bool:
    head, table = mine(part.output.weight), mine(part.tok_embeddings.weight)
    return head.data_ptr() == table.data_ptr()


@pytest.mark.world
@pytest.mark.parametrize("processes", [1, 2])
def test_c15_tied_weights_stay_one_storage_through_steps(processes: int, gloo: GlooPool) -> None:
    arguments = layout(processes, 1, processes, model__shape__tie_embeddings=True)
    assert gloo.run(processes, tied_after_steps, arguments=arguments)[0] == [True] * 4


def held(arguments: dict[str, Any]) -> dict[str, Any]:
    """What a rank holds."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    return {
        "local": built.local_parameters,
        "planned": resolved.stages[0].local_parameters,
        "names": {name: tuple(weight.shape) for name, weight in built.weights.items()},
        "rows": {name: mine(weight).shape[0] for name, weight in built.weights.items()},
        "dtypes": {weight.dtype for weight in built.weights.values()},
        "cos": built.parts[0].cos_SR.dtype,
    }


@pytest.mark.world
def test_each_rank_holds_only_its_share(gloo: GlooPool) -> None:
    ranks = gloo.run(4, held, arguments=layout(4, 1, 4))
    assert [rank["rows"]["output.weight"] for rank in ranks] == [65, 65, 65, 64]
    assert [rank["rows"]["layers.0.feed_forward.w1.weight"] for rank in ranks] == [26, 26, 26, 24]
    assert max(rank["local"] for rank in ranks) == ranks[0]["local"] == ranks[0]["planned"]


@pytest.mark.world
def test_more_ranks_than_rows_leave_some_empty(gloo: GlooPool) -> None:
    ranks = gloo.run(4, held, arguments=layout(4, 1, 4, model__shape__ffn_dim=3, model__shape__vocab_size=2))
    assert [rank["rows"]["output.weight"] for rank in ranks] == [1, 1, 0, 0]


@pytest.mark.world
@pytest.mark.parametrize("family", ["llama3", "llama2", "qwen3"])
def test_names_and_sizes_are_those_of_the_shape_table(family: str, gloo: GlooPool) -> None:
    arguments = layout(1, 1, 1, model__name=family)
    shape = plan(tiny(**arguments)).model
    promised = part_parameters(shape, (0, 1), first=True, last=True)
    built = gloo.run(1, held, arguments=arguments)[0]["names"]
    assert built == {name: weight.shape for name, weight in promised.items()}


@pytest.mark.world
def test_weights_are_kept_in_the_dtype_of_the_config_and_rotary_tables_in_float32(gloo: GlooPool) -> None:
    rank = gloo.run(2, held, arguments=layout(2, 1, 2, training__dtype="bfloat16"))[0]
    assert rank["dtypes"] == {torch.bfloat16}
    assert rank["cos"] == torch.float32


def build_other_plan(change: dict[str, Any]) -> None:
    """Builds against a plan whose promises were changed."""
    config = tiny()
    resolved = plan(config)
    stage = replace(resolved.stages[0], **change)
    build(config, replace(resolved, stages=(stage,)), torch.device("cpu"))


@pytest.mark.world
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": 1}, "do not add up"),
        ({"local_parameters": 1}, "1 planned"),
        ({"layers": (0,)}, r"hold the layers \[0\]"),
    ],
)
def test_a_promise_of_the_plan_that_is_not_kept_stops_the_build(
    change: dict[str, Any], words: str, gloo: GlooPool
) -> None:
    with pytest.raises(RankFailedError, match=words):
        gloo.run(1, build_other_plan, change=change)
