"""Weights that no data rank shares: the gradients of FSDP on one rank, without its buffers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from layouts import layout
from shares import gathered, gradients_of, mine
from synthetic import Rows, tiny
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from engine.build import Built, build
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.parallel.mesh import build_world
from engine.parallel.shard import precision, shard
from engine.planner.plan import plan
from engine.step import forward_backward, update_weights

CPU = torch.device("cpu")
DENOMINATOR = torch.tensor(64.0)


def one_rank(**values: Any) -> dict[str, Any]:
    """Arguments of `tiny` for one process that computes in bfloat16."""
    return layout(1, 1, 1) | {"training__mixed_precision_param": "bfloat16"} | values


def built_of(arguments: dict[str, Any]) -> tuple[Built, Rows]:
    """This rank, and what it reads."""
    config = tiny(**arguments)
    resolved = plan(config)
    return build(config, resolved, CPU), Rows(config, resolved, data_rank=0)


def gradients(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Those of one step."""
    built, rows = built_of(arguments)
    forward_backward(built, rows.batches(1) or [], DENOMINATOR)
    return {name: gathered(gradient).clone() for name, gradient in gradients_of(built).items()}


def gradients_by_fsdp(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """The same by FSDP2 on a mesh of one rank, in float32 as it sums them."""
    config = tiny(**arguments)
    resolved = plan(config)
    with torch.device("meta"):
        part = Decoder(resolved.model, (0, 1), first=True, last=True, seq_len=config.training.seq_len)
    mesh = build_world(resolved.mesh, "cpu").sharding
    shard(part, mesh, policy=precision(config.training), reshard="never", pipelined=False)
    assert isinstance(part, FSDPModule)
    materialise(part, config.debug.seed, CPU)
    for batch in Rows(config, resolved, data_rank=0).batches(1) or []:
        loss = part(torch.from_numpy(batch.tokens_BS), torch.from_numpy(batch.labels_BS))
        (loss / DENOMINATOR).backward()
    return {name: gathered(weight.grad) for name, weight in part.named_parameters() if weight.grad is not None}


@pytest.mark.world
@pytest.mark.parametrize("local_batch", [8, 2], ids=["one_backward", "four_backwards"])
@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_those_of_fsdp_bit_for_bit(local_batch: int, tied: bool, gloo: GlooPool) -> None:
    arguments = one_rank(training__local_batch_size=local_batch, model__shape__tie_embeddings=tied)
    (ours,) = gloo.run(1, gradients, arguments=arguments)
    (theirs,) = gloo.run(1, gradients_by_fsdp, arguments=arguments)
    assert ours.keys() == theirs.keys()
    assert {gradient.dtype for gradient in ours.values()} == {torch.bfloat16 if local_batch == 8 else torch.float32}
    for name, gradient in ours.items():
        assert torch.equal(gradient.float(), theirs[name]), name


@pytest.mark.world
@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "InterleavedZeroBubble"])
def test_a_backward_for_weights_alone_is_summed_in_full_precision(schedule: str, gloo: GlooPool) -> None:
    def pipelined(schedule: str) -> dict[str, Any]:
        return {
            "processes": 2,
            "parallelism__pipeline_parallel_degree": 2,
            "parallelism__pipeline_parallel_schedule": schedule,
            "model__shape__n_layers": 4,
            "training__local_batch_size": 8,
            "training__mixed_precision_param": "bfloat16",
        }

    expected: dict[str, Tensor] = {}
    for rank in gloo.run(2, gradients, arguments=pipelined("Interleaved1F1B")):
        expected |= rank
    for rank in gloo.run(2, gradients, arguments=pipelined(schedule)):
        for name, gradient in rank.items():
            assert gradient.dtype == torch.float32
            # The same products in another order: the head's piece of the loss alone differs in nothing.
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)


ALWAYS = {"parallelism__fsdp_reshard_after_forward": "always"}


def gradients_and_memory(arguments: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Gradients of a step, and the bytes of every copy behind it."""
    built, rows = built_of(arguments)
    with warnings.catch_warnings():
        # torch's own, while it compiles, of several kinds.
        warnings.simplefilter("ignore")
        forward_backward(built, rows.batches(1) or [], DENOMINATOR)
    found = {name: gathered(gradient).clone() for name, gradient in gradients_of(built).items()}
    assert built.whole is not None
    return found, {name: copy.untyped_storage().size() for name, copy in built.whole.copies.items()}


@pytest.mark.world
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"activation_checkpoint__mode": "full"},
        {"activation_checkpoint__mode": "selective"},
        {"training__local_batch_size": 2},
        {"model__shape__tie_embeddings": True},
        {"compile__enable": True},
        {
            "processes": 2,
            "parallelism__pipeline_parallel_degree": 2,
            "parallelism__pipeline_parallel_schedule": "1F1B",
            "parallelism__data_parallel_shard_degree": 1,
        },
    ],
    ids=["plain", "full", "selective", "accumulation", "tied", "compiled", "pipeline"],
)
def test_copies_are_freed_between_uses_and_gradients_stay_the_same(values: dict[str, Any], gloo: GlooPool) -> None:
    kept = one_rank(**{"compile__enable": False} | values)
    processes = kept["processes"]
    for (expected, _), (found, sizes) in zip(
        gloo.run(processes, gradients_and_memory, arguments=kept),
        gloo.run(processes, gradients_and_memory, arguments=kept | ALWAYS),
        strict=True,
    ):
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
        ends = {"norm.weight", "output.weight"} | (
            {"tok_embeddings.weight"} if kept.get("model__shape__tie_embeddings") else set()
        )
        assert {name for name, size in sizes.items() if size} == ends & sizes.keys()


def followed(arguments: dict[str, Any]) -> list[bool]:
    """Whether copies are their weights, rounded: built, updated, after a bad step, and with weights of another run."""
    built, rows = built_of(arguments)
    assert built.whole is not None
    whole = built.whole

    def follow() -> bool:
        held = {name: mine(weight).bfloat16() for name, weight in built.weights.items()}
        return all(torch.equal(whole.copies[name], value) for name, value in held.items())

    def stepped(step: int, max_norm: float) -> None:
        loss = forward_backward(built, rows.batches(step) or [], DENOMINATOR)
        update_weights(built, loss=loss, lr=0.01, max_norm=max_norm)

    found = [follow()]
    before = {name: weight.detach().clone() for name, weight in built.weights.items()}
    stepped(1, 1.0)
    found += [follow(), not any(torch.equal(weight, before[name]) for name, weight in built.weights.items())]
    before = {name: weight.detach().clone() for name, weight in built.weights.items()}
    forward_backward(built, rows.batches(2) or [], DENOMINATOR)
    update_weights(built, loss=torch.tensor(float("inf"), dtype=torch.float64), lr=0.01, max_norm=1.0)
    found += [follow(), all(torch.equal(weight, before[name]) for name, weight in built.weights.items())]
    with torch.no_grad():
        for weight in built.weights.values():
            weight.add_(0.125)
    found.append(not follow())
    built.weights_changed()
    return [*found, follow()]


@pytest.mark.world
@pytest.mark.parametrize("kernel", ["fused", "foreach", "for-loop"])
def test_copies_follow_their_weights(kernel: str, gloo: GlooPool) -> None:
    assert gloo.run(1, followed, arguments=one_rank(optimizer__implementation=kernel)) == [[True] * 7]


def memory(arguments: dict[str, Any]) -> list[bool]:
    """Of each weight whether what is computed with is its own memory."""
    built, _ = built_of(arguments)
    assert built.whole is not None
    return [mine(w).data_ptr() == built.whole.copies[name].data_ptr() for name, w in built.weights.items()]


@pytest.mark.world
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_copy_is_freed_where_weights_have_the_precision_of_products(dtype: str, gloo: GlooPool) -> None:
    arguments = one_rank(training__dtype=dtype, training__mixed_precision_param=dtype) | ALWAYS
    ((_, sizes),) = gloo.run(1, gradients_and_memory, arguments=arguments)
    assert all(sizes.values())


@pytest.mark.world
@pytest.mark.parametrize(("dtype", "shared"), [("float32", False), ("bfloat16", True)])
def test_weights_in_the_precision_of_products_have_no_copies(dtype: str, shared: bool, gloo: GlooPool) -> None:
    (found,) = gloo.run(1, memory, arguments=one_rank(training__dtype=dtype))
    assert set(found) == {shared}
