"""The loss of pieces of the vocabulary: that of the whole, counted once, without padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from layouts import tensor_layout, tensor_rows
from synthetic import Rows, tiny
from torch.distributed.device_mesh import init_device_mesh

import engine.loop
from engine.build import Built, build
from engine.data.batch import IGNORE
from engine.loop import fit
from engine.model.llama import Decoder
from engine.model.loss import cross_entropy_sum
from engine.parallel.tensor import apply_tensor_parallel
from engine.planner.plan import plan


def split_loss(
    logits_BSV: torch.Tensor, labels_BS: torch.Tensor, loss_parallel: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of this rank's piece of logits, and its gradient."""
    vocab_size = logits_BSV.shape[-1]
    with torch.device("meta"):
        shape = plan(tiny(model__shape__vocab_size=vocab_size)).model
        part = Decoder(shape, (), first=False, last=True, seq_len=16)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    entropy = apply_tensor_parallel(part, mesh, loss_parallel=loss_parallel)
    mine = logits_BSV.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].clone().requires_grad_()
    loss = entropy(mine, labels_BS)
    (loss * 0.25).backward()
    assert mine.grad is not None
    return loss.detach(), mine.grad


@pytest.mark.world
@pytest.mark.parametrize("loss_parallel", [True, False])
@pytest.mark.parametrize(("ranks", "vocab_size"), [(2, 5), (2, 8), (4, 13), (4, 259)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_pieces_and_its_gradient_are_those_of_the_whole(
    ranks: int, vocab_size: int, loss_parallel: bool, dtype: torch.dtype, gloo: GlooPool
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = (torch.randn(3, 4, vocab_size, generator=generator) * 30).to(dtype)
    labels_BS = torch.randint(0, vocab_size, (3, 4), generator=generator)
    labels_BS[0, 1], labels_BS[1, 0], labels_BS[2, 2] = IGNORE, vocab_size - 1, 0
    whole = logits_BSV.clone().requires_grad_()
    expected = cross_entropy_sum(whole, labels_BS)
    (expected * 0.25).backward()
    assert whole.grad is not None
    found = gloo.run(ranks, split_loss, logits_BSV=logits_BSV, labels_BS=labels_BS, loss_parallel=loss_parallel)
    for loss, _ in found:
        torch.testing.assert_close(loss, expected.detach())
    gradient = torch.cat([gradient for _, gradient in found], dim=-1)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, whole.grad)


@pytest.mark.world
@pytest.mark.parametrize("loss_parallel", [True, False])
def test_a_batch_without_labels_has_a_loss_of_zero_and_no_gradient(loss_parallel: bool, gloo: GlooPool) -> None:
    labels_BS = torch.full((1, 2), IGNORE)
    for loss, gradient in gloo.run(
        2, split_loss, logits_BSV=torch.randn(1, 2, 6), labels_BS=labels_BS, loss_parallel=loss_parallel
    ):
        assert loss == 0.0
        assert not gradient.any()


@pytest.mark.world
def test_a_nan_in_one_rank_s_logits_is_seen_by_all(gloo: GlooPool) -> None:
    logits_BSV = torch.zeros(1, 2, 6)
    logits_BSV[0, 0, 5] = float("nan")
    labels_BS = torch.zeros(1, 2, dtype=torch.int64)
    for loss, _ in gloo.run(2, split_loss, logits_BSV=logits_BSV, labels_BS=labels_BS, loss_parallel=True):
        assert loss.isnan()


def loss_of_a_silent_head(arguments: dict[str, Any]) -> float:
    """Mean loss where the head's weight is all zero."""
    config = tiny(**arguments)
    resolved = plan(config)
    built = build(config, resolved, torch.device("cpu"))
    (part,) = built.parts
    assert part.output is not None
    with torch.no_grad():
        part.output.weight.zero_()
    (batch,) = tensor_rows(config, resolved).batches(1) or []
    with torch.no_grad():
        total = part(torch.from_numpy(batch.tokens_BS), torch.from_numpy(batch.labels_BS))
    return total.item() / batch.valid_tokens


@pytest.mark.world
@pytest.mark.parametrize("values", [{}, {"parallelism__disable_loss_parallel": True}])
def test_c10_no_rank_counts_padding_of_the_vocabulary(values: dict[str, Any], gloo: GlooPool) -> None:
    shape = {"model__shape__vocab_size": 50_257}
    (alone,) = gloo.run(1, loss_of_a_silent_head, arguments=shape)
    assert math.log(50_257) == pytest.approx(10.824905, abs=1e-6)
    for shown in (alone, *gloo.run(2, loss_of_a_silent_head, arguments=tensor_layout(2, **shape, **values))):
        assert shown == pytest.approx(10.824905, abs=1e-5)


def shown_loss(arguments: dict[str, Any]) -> float:
    """What a step reports where each rank's loss is 24 over 8 labels."""
    config = tiny(**arguments)
    resolved = plan(config)
    before = engine.loop.build

    def build_with_planted_loss(*args: Any) -> Built:
        built = before(*args)
        (part,) = built.parts
        assert part.output is not None
        # The real graph, its value replaced: the gradient has something to flow through.
        part.output.loss = lambda h_BSD, weight_VD, _: (h_BSD.sum() + weight_VD.sum()) * 0.0 + 24.0
        return built

    class Eight(Rows):
        """Eight labels that count."""

        def batches(self, step: int) -> Any:
            """As the others', with most labels ignored."""
            found = super().batches(step) or []
            for batch in found:
                batch.labels_BS[:] = IGNORE
                batch.labels_BS.flat[:8] = 1
            return found

    engine.loop.build = build_with_planted_loss
    try:
        rank = dist.get_rank() // resolved.mesh.tp
        outcome = fit(config, resolved, source=Eight(config, resolved, data_rank=rank))
    finally:
        engine.loop.build = before
    return float(outcome.steps[0]["loss"])


@pytest.mark.world
def test_c25_tensor_ranks_do_not_add_to_the_loss_that_is_shown(gloo: GlooPool) -> None:
    assert gloo.run(2, shown_loss, arguments=tensor_layout(2, training__steps=1)) == [3.0, 3.0]
    assert gloo.run(4, shown_loss, arguments=tensor_layout(2, shards=2, training__steps=1)) == [3.0] * 4
