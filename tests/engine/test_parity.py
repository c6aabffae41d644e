"""The same numbers in data-parallel layouts, from one denominator.

Loss, norm and weights of the plain layouts are held in tests/engine/test_layouts.py; here is what goes with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from layouts import LAYOUTS, layout
from shares import gathered, gradients_of
from synthetic import Rows, tiny

import engine.loop
from engine.build import Built, build
from engine.data.batch import Batch
from engine.loop import fit
from engine.planner.plan import plan
from engine.step import forward_backward


def losses_and_norms(arguments: dict[str, Any]) -> list[tuple[float, float]]:
    """Runs a whole fit on a rank; returns loss and gradient norm of each step."""
    config = tiny(**arguments)
    resolved = plan(config)
    outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=dist.get_rank()))
    assert outcome.exit_code == 0
    return [(step["loss"], step["grad_norm"]) for step in outcome.steps]


@pytest.fixture(scope="module")
def alone(gloo: GlooPool) -> Callable[..., list[tuple[float, float]]]:
    """Figures of one process, computed once for each set of values."""
    known: dict[str, list[tuple[float, float]]] = {}

    def figures(**values: Any) -> list[tuple[float, float]]:
        key = repr(sorted(values.items()))
        if key not in known:
            known[key] = gloo.run(1, losses_and_norms, arguments=layout(1, 1, 1, **values))[0]
        return known[key]

    return figures


@pytest.mark.world
@pytest.mark.parametrize("name", ["replicate_4", "fsdp_4"])
def test_four_ranks_have_the_figures_of_one_process(
    name: str, gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    # Four shards of 102 hidden units are not of equal size.
    values = {"optimizer__name": "SGD"}
    ranks = gloo.run(LAYOUTS[name][0], losses_and_norms, arguments=layout(*LAYOUTS[name], **values))
    # float32 sums over other groups of rows; larger than their rounding, smaller than any wrong factor.
    expected = torch.tensor(alone(**values), dtype=torch.float64)
    for figures in ranks:
        torch.testing.assert_close(torch.tensor(figures, dtype=torch.float64), expected, rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("name", ["fsdp_2", "replicate_2", "hsdp_2x2"])
def test_accumulation_has_the_figures_of_one_batch(
    name: str, gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    ranks = gloo.run(LAYOUTS[name][0], losses_and_norms, arguments=layout(*LAYOUTS[name], training__local_batch_size=1))
    expected = torch.tensor(alone(), dtype=torch.float64)
    torch.testing.assert_close(torch.tensor(ranks[0], dtype=torch.float64), expected, rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("name", ["fsdp_2", "hsdp_2x2"])
def test_resharding_changes_no_figure(
    name: str, gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    for policy in ("always", "never"):
        values = layout(*LAYOUTS[name], parallelism__fsdp_reshard_after_forward=policy)
        figures = gloo.run(LAYOUTS[name][0], losses_and_norms, arguments=values)[0]
        torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone()), rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("family", ["llama2", "qwen3"])
def test_other_families_train_alike_in_two_layouts(
    family: str, gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    values = {"model__name": family}
    figures = gloo.run(2, losses_and_norms, arguments=layout(2, 1, 2, **values))[0]
    torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone(**values)), rtol=1e-5, atol=0)


@pytest.mark.world
def test_weights_kept_in_bf16_train_alike_in_two_layouts(
    gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    values = {"training__dtype": "bfloat16", "training__mixed_precision_param": "bfloat16"}
    figures = gloo.run(2, losses_and_norms, arguments=layout(2, 1, 2, **values))[0]
    # Activations and gradients are rounded to eight bits, row by row in another grouping.
    torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone(**values)), rtol=3e-2, atol=0)


@pytest.mark.world
def test_tied_embeddings_train_alike_in_two_layouts(
    gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    values = {"model__shape__tie_embeddings": True}
    figures = gloo.run(2, losses_and_norms, arguments=layout(2, 1, 2, **values))[0]
    torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone(**values)), rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("kernel", ["foreach", "for-loop"])
def test_every_implementation_updates_alike(
    kernel: str, gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]
) -> None:
    values = layout(2, 1, 2, optimizer__implementation=kernel)
    figures = gloo.run(2, losses_and_norms, arguments=values)[0]
    torch.testing.assert_close(torch.tensor(figures), torch.tensor(alone()), rtol=1e-5, atol=0)


@pytest.mark.world
def test_the_same_seed_gives_the_same_losses_bit_for_bit(gloo: GlooPool) -> None:
    arguments = layout(2, 1, 2, training__mixed_precision_param="bfloat16")
    first, second = (gloo.run(2, losses_and_norms, arguments=arguments) for _ in range(2))
    assert first == second


@pytest.mark.world
def test_another_seed_gives_other_losses(gloo: GlooPool, alone: Callable[..., list[tuple[float, float]]]) -> None:
    other = gloo.run(1, losses_and_norms, arguments=layout(1, 1, 1, debug__seed=1))[0]
    assert other[0] != alone()[0]


# ---- one denominator -------------------------------------------------------------------------


def planted_step(sums: list[list[float]], tokens: list[list[int]], arguments: dict[str, Any]) -> float:
    """Runs one step whose loss sums and valid tokens are those given, by rank and accumulation step."""
    config = tiny(**arguments)
    resolved = plan(config)
    mine, counts = iter(sums[dist.get_rank()]), tokens[dist.get_rank()]

    class Planted(Rows):
        def batches(self, step: int) -> list[Batch] | None:
            full = super().batches(step)
            assert full is not None
            for batch, count in zip(full, counts, strict=True):
                batch.labels_BS[:] = -100
                batch.labels_BS.flat[:count] = 1
            return full

    before = engine.loop.build

    def build_with_planted_loss(*args: Any) -> Built:
        built = before(*args)
        # The real graph, its value replaced: the gradient has something to flow through.
        head = built.parts[0].output
        assert head is not None
        head.loss = lambda h_BSD, weight_VD, _: (h_BSD.sum() + weight_VD.sum()).float() * 0.0 + next(mine)
        return built

    engine.loop.build = build_with_planted_loss
    try:
        outcome = fit(config, resolved, source=Planted(config, resolved, data_rank=dist.get_rank()))
    finally:
        engine.loop.build = before
    return float(outcome.steps[0]["loss"])


@pytest.mark.world
def test_c17_two_data_ranks_share_one_denominator(gloo: GlooPool) -> None:
    arguments = layout(2, 1, 2, training__steps=1)
    shown = gloo.run(2, planted_step, sums=[[8.0], [12.0]], tokens=[[1], [3]], arguments=arguments)
    assert shown == [5.0, 5.0]


@pytest.mark.world
def test_c17_accumulation_steps_share_one_denominator(gloo: GlooPool) -> None:
    arguments = layout(1, 1, 1, training__steps=1, training__local_batch_size=4)
    assert gloo.run(1, planted_step, sums=[[2.0, 18.0]], tokens=[[2, 6]], arguments=arguments) == [2.5]


def gradients(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The whole gradient of one step, gathered, as the optimizer would see it."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    batches = Rows(config, resolved, data_rank=dist.get_rank()).batches(1)
    assert batches is not None
    valid = torch.tensor(sum(batch.valid_tokens for batch in batches))
    dist.all_reduce(valid)
    forward_backward(built, batches, valid.float())
    return {name: gathered(gradient) for name, gradient in gradients_of(built).items()}


@pytest.mark.world
@pytest.mark.parametrize(("name", "rows"), [("fsdp_2", 4), ("fsdp_2", 1), ("replicate_2", 2), ("hsdp_2x2", 1)])
def test_c17_gradients_equal_those_of_all_tokens_in_one_batch(name: str, rows: int, gloo: GlooPool) -> None:
    whole = gloo.run(1, gradients, arguments=layout(1, 1, 1))[0]
    split = gloo.run(LAYOUTS[name][0], gradients, arguments=layout(*LAYOUTS[name], training__local_batch_size=rows))[0]
    for weight, gradient in whole.items():
        torch.testing.assert_close(split[weight], gradient, rtol=0, atol=1e-6, msg=weight)


@pytest.mark.world
def test_c19_accumulated_gradients_are_the_mean_over_all_tokens(gloo: GlooPool) -> None:
    four = gloo.run(1, gradients, arguments=layout(1, 1, 1, training__local_batch_size=2))[0]
    one = gloo.run(1, gradients, arguments=layout(1, 1, 1))[0]
    for weight, gradient in one.items():
        torch.testing.assert_close(four[weight], gradient, rtol=0, atol=1e-6, msg=weight)
