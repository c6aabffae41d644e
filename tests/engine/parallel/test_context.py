"""Tokens over ranks: every method gives what one process gives, values and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import tiny
from torch.distributed.device_mesh import init_device_mesh

from engine.data.loader import IGNORE
from engine.model.attention import causal
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.context import apply_context_parallel
from engine.parallel.recompute import apply_recompute
from engine.planner.recompute import Recompute
from engine.shapes import ModelShape, shape_of

WAYS = [("allgather", "headtail"), ("allgather", "none"), ("ring", "headtail"), ("ring", "none"), ("ulysses", "auto")]
LENGTH = 16
CPU = torch.device("cpu")


def shape(**values: Any) -> ModelShape:
    """Two layers of width 32 with 4 query heads."""
    return shape_of(tiny(**{f"model__{key}": value for key, value in values.items()}).model)


def part_of(given: ModelShape, ranks: int, method: str, balance: str, **more: Any) -> Decoder:
    """A whole model, of whose tokens this rank has its share."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    with torch.device("meta"):
        part = Decoder(given, tuple(range(given.n_layers)), first=True, last=True, seq_len=LENGTH)
    apply_context_parallel(part, mesh, method=method, balance=balance)  # type: ignore[arg-type]
    if "recompute" in more:
        apply_recompute(part, more["recompute"])
    if "backend" in more:
        for block in part.layers.values():
            block.forward = torch.compile(block.forward, fullgraph=True, backend=more["backend"])
    materialise(part, 0, CPU)
    return part


def alone(given: ModelShape) -> Decoder:
    """The same model in one process."""
    part = Decoder(given, tuple(range(given.n_layers)), first=True, last=True, seq_len=LENGTH)
    materialise(part, 0, CPU)
    return part


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, labels of which some do not count, and positions of documents that begin anywhere."""
    random = torch.Generator().manual_seed(0)
    tokens_BS = torch.randint(0, 259, (2, LENGTH + 1), generator=random)
    labels_BS = tokens_BS[:, 1:].clone()
    labels_BS[0, :5] = IGNORE
    return (
        tokens_BS[:, :-1],
        labels_BS,
        torch.tensor([[*range(3), *range(5), *range(8)], [*range(9), *range(1), *range(1), *range(5)]]),
    )


# ---- one attention ---------------------------------------------------------------------------


def distances(ranks: int, method: str, balance: str, dtype: torch.dtype) -> dict[str, float]:
    """How far a rank's attention and its gradients are from those of the whole sequence, for every kind of heads."""
    found = {}
    for (heads, kv_heads), packed in product([(4, 2), (4, 1), (4, 4)], [False, True]):
        part = part_of(shape(), ranks, method, balance)
        assert part.order is not None
        own_S, (_, _, positions_BS) = part.order(CPU), batch()
        documents_BS = (positions_BS == 0).cumsum(1) if packed else None
        torch.manual_seed(0)
        whole = [torch.randn(2, LENGTH, count, 8, dtype=dtype) for count in (heads, kv_heads, kv_heads)]
        gradient = torch.randn(2, LENGTH, heads, 8, dtype=dtype)
        expected = [heads.clone().requires_grad_() for heads in whole]
        got = [heads[:, own_S].clone().requires_grad_() for heads in whole]
        out = causal(*expected, documents_BS)
        mine = part.layers["0"].attention.core(*got, documents_BS)
        out.backward(gradient)
        mine.backward(gradient[:, own_S])
        pairs = [
            (out.detach(), mine.detach()),
            *((one.grad, other.grad) for one, other in zip(expected, got, strict=True)),
        ]
        found[f"{heads}/{kv_heads} heads, packed {packed}"] = max(
            float((one[:, own_S] - other).abs().max() / one.abs().max()) for one, other in pairs
        )
    return found


@pytest.mark.world
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_attention_and_its_gradients_are_those_of_the_whole_sequence(
    method: str, balance: str, ranks: int, gloo: GlooPool
) -> None:
    for found in gloo.run(ranks, distances, ranks=ranks, method=method, balance=balance, dtype=torch.float32):
        # Sums over other groups of keys, in float32.
        assert max(found.values()) < 2e-6, found


@pytest.mark.world
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_attention_in_bf16_is_that_of_the_whole_sequence_but_for_rounding(
    method: str, balance: str, gloo: GlooPool
) -> None:
    for found in gloo.run(2, distances, ranks=2, method=method, balance=balance, dtype=torch.bfloat16):
        # Eight bits, rounded a few times on the way: 2 ** -8 is 0.004.
        assert max(found.values()) < 2e-2, found


# ---- the model ---------------------------------------------------------------------------------


def logits(ranks: int, method: str, balance: str, packed: bool) -> tuple[list[int], torch.Tensor]:
    """The positions of a rank's tokens and their logits."""
    part = part_of(shape(), ranks, method, balance)
    tokens_BS, _, positions_BS = batch()
    assert part.order is not None
    with torch.no_grad():
        return part.order(CPU).tolist(), part(tokens_BS, None, positions_BS if packed else None)


@pytest.mark.world
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_c22_logits_in_natural_order_are_those_of_one_process(
    method: str, balance: str, packed: bool, gloo: GlooPool
) -> None:
    tokens_BS, _, positions_BS = batch()
    with torch.no_grad():
        expected = alone(shape())(tokens_BS, None, positions_BS if packed else None)
    got = torch.full_like(expected, torch.nan)
    for order, own in gloo.run(2, logits, ranks=2, method=method, balance=balance, packed=packed):
        got[:, order] = own
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def order_of_eight(ranks: int, method: str, balance: str) -> list[int]:
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    part = Decoder(shape(), (0,), first=True, last=True, seq_len=8)
    apply_context_parallel(part, mesh, method=method, balance=balance)  # type: ignore[arg-type]
    part.rebuild(CPU)
    return part.order_S.tolist()


@pytest.mark.world
@pytest.mark.parametrize("method", ["allgather", "ring"])
@pytest.mark.parametrize("balance", ["headtail", "auto"])
def test_c22_balanced_ranks_hold_an_early_and_a_late_chunk(method: str, balance: str, gloo: GlooPool) -> None:
    held = gloo.run(2, order_of_eight, ranks=2, method=method, balance=balance)
    assert held == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.world
@pytest.mark.parametrize(("method", "balance"), [("allgather", "none"), ("ring", "none"), ("ulysses", "auto")])
def test_unbalanced_ranks_hold_one_run(method: str, balance: str, gloo: GlooPool) -> None:
    held = gloo.run(2, order_of_eight, ranks=2, method=method, balance=balance)
    assert held == [[0, 1, 2, 3], [4, 5, 6, 7]]


def step(part: Decoder, packed: bool) -> dict[str, torch.Tensor]:
    """The loss and the gradient of every weight, summed over the ranks."""
    tokens_BS, labels_BS, positions_BS = batch()
    loss = part(tokens_BS, labels_BS, positions_BS if packed else None)
    loss.backward()
    found = {name: weight.grad for name, weight in part.named_parameters() if weight.grad is not None}
    found["loss"] = loss.detach().clone()
    if dist.is_initialized():
        for value in found.values():
            dist.all_reduce(value)
    return found


def trained(ranks: int, method: str, balance: str, packed: bool, **values: Any) -> dict[str, torch.Tensor]:
    return step(part_of(shape(**values), ranks, method, balance), packed)


@pytest.mark.world
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("method", "balance"), WAYS)
@pytest.mark.parametrize("values", [{}, {"name": "qwen3"}, {"shape__n_kv_heads": 1}], ids=["llama3", "qwen3", "one_kv"])
def test_loss_and_gradients_are_those_of_one_process(
    values: dict[str, Any], method: str, balance: str, ranks: int, packed: bool, gloo: GlooPool
) -> None:
    expected = step(alone(shape(**values)), packed)
    for found in gloo.run(ranks, trained, ranks=ranks, method=method, balance=balance, packed=packed, **values):
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-6, atol=0)
        for name, gradient in expected.items():
            # Relative to the largest of a weight: sums in float32, in another order.
            torch.testing.assert_close(
                found[name], gradient, rtol=0, atol=1e-5 * float(gradient.abs().max()), msg=f"{name}"
            )


# ---- beside recomputation and compilation --------------------------------------------------------


@contextmanager
def compiler_may_warn() -> Iterator[None]:
    """Lets the compiler's own warnings pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def beside(ranks: int, method: str, packed: bool, more: dict[str, Any]) -> list[str]:
    """Names of weights whose gradients differ where something more is done to the blocks."""
    plain = step(part_of(shape(), ranks, method, "auto"), packed)
    torch._dynamo.reset()
    with compiler_may_warn():
        changed = step(part_of(shape(), ranks, method, "auto", **more), packed)
    return [name for name, value in plain.items() if not torch.equal(changed[name], value)]


@pytest.mark.world
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("method", ["allgather", "ring", "ulysses"])
def test_recomputation_changes_no_bit(method: str, mode: str, packed: bool, gloo: GlooPool) -> None:
    more = {"recompute": Recompute(mode=mode)}  # type: ignore[arg-type]
    assert gloo.run(2, beside, ranks=2, method=method, packed=packed, more=more) == [[], []]


@pytest.mark.world
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("method", ["allgather", "ring", "ulysses"])
def test_blocks_compile_without_a_break_and_change_no_bit(method: str, packed: bool, gloo: GlooPool) -> None:
    more = {"backend": "aot_eager"}
    assert gloo.run(2, beside, ranks=2, method=method, packed=packed, more=more) == [[], []]
