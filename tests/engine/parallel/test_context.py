"""Tokens over ranks: every method gives what one process gives, values and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import tiny
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from engine.data.batch import IGNORE
from engine.model.attention import causal
from engine.model.documents import documents_of
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.context import apply_context_parallel
from engine.parallel.recompute import apply_recompute
from engine.planner.recompute import Recompute
from engine.shapes import ModelShape, shape_of

METHODS = ("allgather", "ring", "ulysses")
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
        part = Decoder(given, tuple(range(given.n_layers)), first=True, last=True, seq_len=more.get("seq_len", LENGTH))
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


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference, each relative to the largest value of what it is found in."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - value).abs().max() / value.abs().max()) for name, value in expected.items())


# ---- one attention ---------------------------------------------------------------------------


def attended(ranks: int, method: str, balance: str, dtype: torch.dtype) -> dict[str, float]:
    """How far a rank's attention and its gradients are from those of the whole sequence, for every kind of heads."""
    found = {}
    part = part_of(shape(), ranks, method, balance)
    assert part.order is not None
    own_S, (_, _, positions_BS) = part.order(CPU), batch()
    for (heads, kv_heads), packed in product([(4, 2), (4, 1), (4, 4)], [False, True]):
        numbers_BS, rows_S = (positions_BS == 0).cumsum(1), torch.arange(LENGTH)
        whole_documents = documents_of(numbers_BS, rows_S) if packed else None
        own_documents = documents_of(numbers_BS, part.masked(numbers_BS)) if packed else None
        torch.manual_seed(0)
        whole = [torch.randn(2, LENGTH, count, 8, dtype=dtype) for count in (heads, kv_heads, kv_heads)]
        given = torch.randn(2, LENGTH, heads, 8, dtype=dtype)
        of_all = [heads.clone().requires_grad_() for heads in whole]
        of_own = [heads[:, own_S].clone().requires_grad_() for heads in whole]
        out = causal(*of_all, whole_documents)
        own_out = part.layers["0"].attention.core(*of_own, own_documents)
        expected = [out[:, own_S], *(x[:, own_S] for x in torch.autograd.grad(out, of_all, given))]
        got = [own_out, *torch.autograd.grad(own_out, of_own, given[:, own_S])]
        names = ("out", "q", "k", "v")
        found[f"{heads}/{kv_heads} heads, packed {packed}"] = worst(
            {name: x.detach() for name, x in zip(names, got, strict=True)},
            {name: x.detach() for name, x in zip(names, expected, strict=True)},
        )
    return found


@pytest.mark.world
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_attention_and_its_gradients_are_those_of_the_whole_sequence(
    method: str, balance: str, ranks: int, gloo: GlooPool
) -> None:
    for found in gloo.run(ranks, attended, ranks=ranks, method=method, balance=balance, dtype=torch.float32):
        # Sums over other groups of keys, in float32.
        assert max(found.values()) < 2e-6, found


@pytest.mark.world
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_attention_in_bf16_is_that_of_the_whole_sequence_but_for_rounding(
    method: str, balance: str, gloo: GlooPool
) -> None:
    for found in gloo.run(2, attended, ranks=2, method=method, balance=balance, dtype=torch.bfloat16):
        # Eight bits, rounded a few times on the way: 2 ** -8 is 0.004.
        assert max(found.values()) < 2e-2, found


# ---- the model ---------------------------------------------------------------------------------


def logits(ranks: int, method: str, balance: str) -> tuple[list[int], list[torch.Tensor]]:
    """The positions of a rank's tokens, and their logits as one document and as several."""
    part = part_of(shape(), ranks, method, balance)
    tokens_BS, _, positions_BS = batch()
    assert part.order is not None
    with torch.no_grad():
        return part.order(CPU).tolist(), [part(tokens_BS, None, places) for places in (None, positions_BS)]


@pytest.mark.world
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_c22_logits_in_natural_order_are_those_of_one_process(method: str, balance: str, gloo: GlooPool) -> None:
    tokens_BS, _, positions_BS = batch()
    ranks = gloo.run(2, logits, ranks=2, method=method, balance=balance)
    for index, places in enumerate((None, positions_BS)):
        with torch.no_grad():
            expected = alone(shape())(tokens_BS, None, places)
        got = torch.full_like(expected, torch.nan)
        for order, own in ranks:
            got[:, order] = own[index]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def orders(ranks: int, ways: list[tuple[str, str]]) -> list[list[int]]:
    """The positions that a rank holds of a sequence of 8, each way."""
    found = []
    for method, balance in ways:
        part = part_of(shape(), ranks, method, balance, seq_len=8)
        found.append(part.order_S.tolist())
    return found


@pytest.mark.world
def test_c22_balanced_ranks_hold_an_early_and_a_late_chunk(gloo: GlooPool) -> None:
    ways = list(product(["allgather", "ring"], ["headtail", "auto"]))
    assert gloo.run(2, orders, ranks=2, ways=ways) == [[[0, 1, 6, 7]] * 4, [[2, 3, 4, 5]] * 4]


@pytest.mark.world
def test_unbalanced_ranks_hold_one_run(gloo: GlooPool) -> None:
    ways = [("allgather", "none"), ("ring", "none"), ("ulysses", "auto"), ("ulysses", "headtail")]
    assert gloo.run(2, orders, ranks=2, ways=ways) == [[[0, 1, 2, 3]] * 4, [[4, 5, 6, 7]] * 4]


def step(part: Decoder, packed: bool) -> dict[str, torch.Tensor]:
    """The loss and the gradient of every weight, of this rank's tokens."""
    tokens_BS, labels_BS, positions_BS = batch()
    loss = part(tokens_BS, labels_BS, positions_BS if packed else None)
    loss.backward()
    gradients = {name: weight.grad for name, weight in part.named_parameters() if weight.grad is not None}
    return {**gradients, "loss": loss.detach()}


def trained(ranks: int, method: str, balance: str) -> dict[str, float]:
    """How far loss and gradients, summed over the ranks, are from those of one process, for several models."""
    distances = {}
    for values, packed in product([{}, {"name": "qwen3"}, {"shape__n_kv_heads": 1}], [False, True]):
        found = step(part_of(shape(**values), ranks, method, balance), packed)
        for value in found.values():
            dist.all_reduce(value)
        distances[f"{values}, packed {packed}"] = worst(found, step(alone(shape(**values)), packed))
    return distances


@pytest.mark.world
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("method", "balance"), WAYS)
def test_loss_and_gradients_are_those_of_one_process(method: str, balance: str, ranks: int, gloo: GlooPool) -> None:
    for found in gloo.run(ranks, trained, ranks=ranks, method=method, balance=balance):
        # Sums in float32, in another order.
        assert max(found.values()) < 1e-5, found


# ---- beside recomputation and compilation, and on fake tensors -----------------------------------


def changed(ranks: int, method: str, ways: list[dict[str, Any]]) -> list[str]:
    """Names of weights whose gradients differ where something more is done to the blocks."""
    found, given = [], shape(shape__n_layers=1)
    for packed in (False, True):
        plain = step(part_of(given, ranks, method, "auto"), packed)
        for more in ways:
            torch._dynamo.reset()
            with warnings.catch_warnings():
                # The compiler has some of its own.
                warnings.simplefilter("default")
                other = step(part_of(given, ranks, method, "auto", **more), packed)
            found += [name for name, value in plain.items() if not torch.equal(other[name], value)]
    return found


@pytest.mark.world
@pytest.mark.parametrize("method", METHODS)
def test_recomputation_changes_no_bit(method: str, gloo: GlooPool) -> None:
    ways = [{"recompute": Recompute(mode="full")}, {"recompute": Recompute(mode="selective")}]
    assert gloo.run(2, changed, ranks=2, method=method, ways=ways) == [[], []]


@pytest.mark.world
@pytest.mark.parametrize("method", METHODS)
def test_blocks_compile_without_a_break_and_change_no_bit(method: str, gloo: GlooPool) -> None:
    assert gloo.run(2, changed, ranks=2, method=method, ways=[{"backend": "aot_eager"}]) == [[], []]


def kept_elements(ranks: int, method: str) -> dict[str, int]:
    """Elements that autograd keeps of one attention of 4 and 2 heads of width 8: by method, for its memory."""
    part = part_of(shape(), ranks, method, "auto")
    own = [torch.randn(2, LENGTH // ranks, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    sizes: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = part.layers["0"].attention.core(*own, None)
    out.sum().backward()
    return {"kept": sum(sizes.values()), "query": own[0].numel(), "key": own[1].numel()}


@pytest.mark.world
@pytest.mark.parametrize(("method", "keys"), [("allgather", 4), ("ring", 1)])
def test_attention_keeps_the_keys_of_all_ranks_only_where_they_are_gathered(
    method: str, keys: int, gloo: GlooPool
) -> None:
    for found in gloo.run(4, kept_elements, ranks=4, method=method):
        log_sums = found["query"] // 8
        assert found["kept"] == 2 * found["query"] + 2 * keys * found["key"] + log_sums


@pytest.fixture
def fake_ranks() -> Iterator[int]:
    """A process group of 8 ranks, of which there is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    yield 8
    dist.destroy_process_group()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_fake_tensors_pass_with_a_fake_group(method: str, packed: bool, fake_ranks: int) -> None:
    given = shape(shape__n_heads=8)
    mesh = init_device_mesh("cpu", (fake_ranks,), mesh_dim_names=("cp",))
    with torch.device("meta"):
        part = Decoder(given, (0,), first=True, last=True, seq_len=LENGTH)
    apply_context_parallel(part, mesh, method=method, balance="auto")  # type: ignore[arg-type]
    with FakeTensorMode(allow_non_fake_inputs=True):
        part.to_empty(device="cpu")
        part.rebuild(CPU)
        found = step(part, packed)
    assert {name: tuple(value.shape) for name, value in found.items() if name != "loss"} == {
        name: tuple(weight.shape) for name, weight in part.named_parameters()
    }
