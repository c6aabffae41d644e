"""The loss is a float32 sum over labels that count."""

from __future__ import annotations

import warnings
from math import log
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from synthetic import Rows, tiny
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.nn.functional import linear
from watching import Watching

from engine.data.batch import IGNORE as DATA_IGNORE
from engine.loop import fit
from engine.model.linear import Linear
from engine.model.llama import Head
from engine.model.loss import IGNORE, HeadLoss, PiecewiseLoss, cross_entropy_sum, head_loss
from engine.parallel.compile import compile_loss
from engine.planner.plan import plan
from engine.shapes import ModelShape


def test_the_loss_is_a_sum_over_valid_labels() -> None:
    logits_BSV = torch.randn(2, 3, 7, dtype=torch.float64)
    labels_BS = torch.tensor([[1, IGNORE, 3], [IGNORE, IGNORE, 0]])
    chances = logits_BSV.log_softmax(-1)
    expected = -(chances[0, 0, 1] + chances[0, 2, 3] + chances[1, 2, 0])
    assert cross_entropy_sum(logits_BSV, labels_BS).item() == pytest.approx(expected.item(), rel=1e-6)


def test_without_valid_labels_the_loss_is_zero_and_so_are_gradients() -> None:
    logits_BSV = torch.randn(1, 2, 5, requires_grad=True)
    loss = cross_entropy_sum(logits_BSV, torch.full((1, 2), IGNORE))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert torch.equal(logits_BSV.grad, torch.zeros(1, 2, 5))


def test_bf16_logits_give_a_float32_loss() -> None:
    logits_BSV = torch.randn(1, 4, 9).bfloat16()
    labels_BS = torch.tensor([[0, 1, 2, 3]])
    loss = cross_entropy_sum(logits_BSV, labels_BS)
    assert loss.dtype == torch.float32
    assert loss == cross_entropy_sum(logits_BSV.float(), labels_BS)


def test_c10_even_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    labels_BS = torch.tensor([[0, 50_256]])
    assert cross_entropy_sum(torch.zeros(1, 2, 50_257), labels_BS).item() / 2 == pytest.approx(10.824905, abs=1e-5)
    assert pytest.approx(10.824905, abs=1e-6) == log(50_257)


def test_data_and_loss_agree_on_labels_that_do_not_count() -> None:
    assert IGNORE == DATA_IGNORE


# ---- piece by piece ----------------------------------------------------------------------------

DIM, VOCABULARY, GIB = 24, 331, 1 << 30
SHAPE = ModelShape(dim=DIM, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=DIM, ffn_dim=DIM, vocab_size=VOCABULARY)


def given(sequence: int = 30, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """What goes into a head, its weight and labels, a third of which do not count."""
    generator = torch.Generator().manual_seed(0)
    h_BSD = torch.randn(3, sequence, DIM, generator=generator)
    weight_VD = torch.randn(VOCABULARY, DIM, generator=generator) / DIM
    labels_BS = torch.randint(0, VOCABULARY, (3, sequence), generator=generator)
    labels_BS[0] = IGNORE
    return h_BSD.to(dtype).requires_grad_(), weight_VD.to(dtype).requires_grad_(), labels_BS


def loss_of(chunks: int) -> HeadLoss:
    """Head and cross entropy in so many pieces."""
    return head_loss(product=linear, cross_entropy=cross_entropy_sum, chunks=chunks)


def loss_and_gradients(loss: HeadLoss, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the gradients of a seventh of it, as a step divides by its tokens."""
    h_BSD, weight_VD, labels_BS = given
    total = loss(h_BSD, weight_VD, labels_BS)
    return (total.detach(), *torch.autograd.grad(total / 7, (h_BSD, weight_VD)))


@pytest.mark.parametrize("chunks", [2, 3, 7, 30, 99])
def test_pieces_give_the_loss_and_gradients_of_the_whole(chunks: int) -> None:
    whole = loss_and_gradients(loss_of(1), given())
    # float32 sums in another grouping.
    torch.testing.assert_close(loss_and_gradients(loss_of(chunks), given()), whole, rtol=1e-6, atol=1e-6)


def test_bf16_pieces_are_as_near_to_float32_as_the_bf16_whole() -> None:
    exact = loss_and_gradients(loss_of(1), given())[2]
    errors = [
        (loss_and_gradients(loss_of(chunks), given(dtype=torch.bfloat16))[2].float() - exact).norm().item()
        for chunks in (1, 15)
    ]
    print(errors)
    # The gradient of the weight is summed in float32 and rounded twice.
    assert errors[1] < 1.5 * errors[0]


def test_the_gradients_have_the_precision_of_what_they_belong_to() -> None:
    total, h_BSD, weight_VD = loss_and_gradients(loss_of(2), given(dtype=torch.bfloat16))
    assert (total.dtype, h_BSD.dtype, weight_VD.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("chunks", [2, 5, 10])
def test_logits_of_one_piece_are_held_at_a_time(chunks: int) -> None:
    seen = []
    for pieces in (1, chunks):
        arguments = given(sequence=120)
        with Watching(width=VOCABULARY) as watching:
            loss_and_gradients(loss_of(pieces), arguments)
        seen.append(watching)
    assert seen[1].widest_bytes * chunks == seen[0].widest_bytes
    assert seen[1].peak_bytes < seen[0].peak_bytes


def test_nothing_is_multiplied_twice() -> None:
    with Watching() as seen:
        loss_and_gradients(loss_of(5), given())
    assert seen.calls["aten::mm"] == 5 * 3


def test_without_gradients_nothing_is_done_for_them() -> None:
    h_BSD, weight_VD, labels_BS = given()
    with Watching() as seen, torch.no_grad():
        total = loss_of(5)(h_BSD, weight_VD, labels_BS)
    assert seen.calls["aten::mm"] == 5
    assert not total.requires_grad
    torch.testing.assert_close(total, loss_of(1)(h_BSD, weight_VD, labels_BS).detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("frozen", [0, 1])
def test_only_what_wants_a_gradient_gets_one(frozen: int) -> None:
    arguments = given()
    arguments[frozen].requires_grad_(False)
    expected = loss_and_gradients(loss_of(1), given())[2 - frozen]
    loss_of(4)(*arguments).div(7).backward()
    assert arguments[frozen].grad is None
    found = arguments[1 - frozen].grad
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_backward_may_run_twice() -> None:
    h_BSD, weight_VD, labels_BS = given()
    total = loss_of(3)(h_BSD, weight_VD, labels_BS)
    once = torch.autograd.grad(total, (h_BSD, weight_VD), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(once, torch.autograd.grad(total, (h_BSD, weight_VD)), strict=True))


def test_a_zero_bubble_pipeline_gets_both_halves_of_the_backward() -> None:
    head, h_BSD, labels_BS = Linear(DIM, VOCABULARY), given()[0], given()[2]
    expected = loss_and_gradients(loss_of(1), (h_BSD, head.weight, labels_BS))
    total = loss_of(3)(h_BSD, head.weight, labels_BS) / 7
    _, groups = stage_backward_input([total], None, [h_BSD], iter(head.parameters()))
    assert head.weight.grad is None
    stage_backward_weight(iter(head.parameters()), groups)
    assert h_BSD.grad is not None
    torch.testing.assert_close((h_BSD.grad, head.weight.grad), expected[1:], rtol=1e-6, atol=1e-6)


def test_a_compiled_loss_compiles_the_piece() -> None:
    head = Head(SHAPE)
    head.loss = loss_of(3)
    torch._dynamo.reset()
    compile_loss(head)
    assert isinstance(head.loss, PiecewiseLoss)
    counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the compiler's own
        found = loss_and_gradients(head.loss, given())
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(found, loss_and_gradients(loss_of(1), given()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("chunks", "gib"), [(1, 4.64), (8, 0.58)])
def test_c48e_float32_logits_of_a_large_vocabulary(chunks: int, gib: float) -> None:
    with FakeTensorMode():
        h_BSD, weight_VD = (torch.empty(size, 64, requires_grad=True) for size in (8192, 151_936))
        labels_BS = torch.zeros(1, 8192, dtype=torch.int64)
        with Watching(width=151_936) as seen:
            loss_and_gradients(loss_of(chunks), (h_BSD[None], weight_VD, labels_BS))
    assert seen.widest_bytes / GIB == pytest.approx(gib, abs=0.005)


def figures(arguments: dict[str, Any]) -> Tensor:
    """Loss and gradient norm of each step of a run on this rank."""
    config = tiny(**arguments)
    resolved = plan(config)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the compiler's own
        rank = dist.get_rank() % resolved.mesh.data_ranks
        outcome = fit(config, resolved, source=Rows(config, resolved, data_rank=rank))
    return torch.tensor([(step["loss"], step["grad_norm"]) for step in outcome.steps], dtype=torch.float64)


@pytest.mark.world
@pytest.mark.parametrize(
    "values",
    [{}, {"model__shape__tie_embeddings": True}, {"compile__enable": True, "compile__components": ["loss"]}],
    ids=["sharded", "tied", "compiled"],
)
def test_a_sharded_run_in_pieces_has_the_figures_of_one_process(values: dict[str, Any], gloo: GlooPool) -> None:
    tied = {key: value for key, value in values.items() if key.startswith("model")}
    [expected] = gloo.run(1, figures, arguments=tied)
    for found in gloo.run(2, figures, arguments={"processes": 2, "training__loss_chunks": 4, **values}):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_a_pipeline_in_pieces_has_the_figures_of_one_process(schedule: str, gloo: GlooPool) -> None:
    layers = {"model__shape__n_layers": 4}
    [expected] = gloo.run(1, figures, arguments=layers)
    arguments = {
        "processes": 2,
        "parallelism__pipeline_parallel_degree": 2,
        "parallelism__pipeline_parallel_schedule": schedule,
        "training__local_batch_size": 8,
        "training__loss_chunks": 4,
    }
    for found in gloo.run(2, figures, arguments=layers | arguments):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.world
@pytest.mark.parametrize("axis", ["tensor_parallel", "context_parallel"])
def test_a_cut_sequence_or_vocabulary_in_pieces_has_the_figures_of_one_process(axis: str, gloo: GlooPool) -> None:
    [expected] = gloo.run(1, figures, arguments={})
    arguments = {"processes": 2, f"parallelism__{axis}_degree": 2, "training__local_batch_size": 8}
    for found in gloo.run(2, figures, arguments=arguments | {"training__loss_chunks": 4}):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
