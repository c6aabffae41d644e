"""On a GPU: weights that no data rank shares, their copies, and the kernel that updates both."""

from __future__ import annotations

import pytest
import torch
from synthetic import Rows, tiny

from engine import adam_kernel
from engine.build import build
from engine.model.norm_kernel import rms_norm
from engine.parallel.mesh import process_group
from engine.planner.plan import plan
from engine.step import forward_backward, update_weights

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]


@pytest.mark.parametrize("local_batch", [8, 2])
def test_copies_follow_their_weights_and_a_bad_step_changes_nothing(local_batch: int) -> None:
    sizes = {"dim": 256, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 512}
    shape = {f"model__shape__{key}": value for key, value in sizes.items()}
    values = {"training__mixed_precision_param": "bfloat16", "training__local_batch_size": local_batch}
    config = tiny(**({"cluster__gpu": "h200", "training__seq_len": 128} | shape | values))
    resolved = plan(config)
    device = torch.device("cuda", 0)
    assert adam_kernel.available(device)
    with process_group(device, world_size=1, deadline_s=60):
        built = build(config, resolved, device)
        rows = Rows(config, resolved, data_rank=0)
        assert built.whole is not None
        whole = built.whole
        for step, loss in ((1, 1.0), (2, float("inf")), (3, 1.0)):
            before = {name: weight.detach().clone() for name, weight in built.weights.items()}
            forward_backward(built, rows.batches(step) or [], torch.tensor(64.0, device=device))
            kinds = {gradient.dtype for gradient in built.gradients}
            assert kinds == {torch.bfloat16 if local_batch == 8 else torch.float32}
            update_weights(built, loss=torch.tensor(loss, device=device), lr=0.01, max_norm=1.0)
            for name, weight in built.weights.items():
                assert torch.equal(weight.bfloat16(), whole.copies[name]), name
                assert torch.equal(weight, before[name]) == (loss == float("inf")), name
        assert {float(state["step"]) for state in built.optimizer.state.values()} == {2.0}


@pytest.mark.parametrize("width", [4096, 1000])
def test_gradients_of_the_norm_are_those_of_plain_arithmetic(width: int) -> None:
    x, given = (torch.randn(3, 700, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    found = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    exact = [tensor.double().requires_grad_() for tensor in (x, weight)]
    rms_norm(*found, 1e-5).backward(given)
    torch.nn.functional.rms_norm(exact[0], (width,), exact[1], 1e-5).backward(given.double())
    for mine, theirs in zip(found, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        # bfloat16 has 8 bits: half a unit in the last place of the largest.
        assert (mine.grad - theirs.grad).norm() / theirs.grad.norm() < 4e-3


def test_copies_that_are_made_for_each_use_give_the_same_gradients() -> None:
    sizes = {"dim": 256, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 512}
    shape = {f"model__shape__{key}": value for key, value in sizes.items()}
    values = shape | {"cluster__gpu": "h200", "training__seq_len": 128, "training__mixed_precision_param": "bfloat16"}
    device, found = torch.device("cuda", 0), []
    for reshard in ("default", "always"):
        config = tiny(**values, compile__enable=True, parallelism__fsdp_reshard_after_forward=reshard)
        resolved = plan(config)
        with process_group(device, world_size=1, deadline_s=60):
            built = build(config, resolved, device)
            batches = Rows(config, resolved, data_rank=0).batches(1) or []
            forward_backward(built, batches, torch.tensor(64.0, device=device))
            found.append([gradient.clone() for gradient in built.gradients])
            assert built.whole is not None
            sizes_bytes = [copy.untyped_storage().size() for copy in built.whole.copies.values()]
            assert (0 in sizes_bytes) == (reshard == "always")
    assert all(torch.equal(kept, made) for kept, made in zip(*found, strict=True))
