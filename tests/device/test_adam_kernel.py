"""Adam's update in one pass on a GPU: beside torch's fused kernel, to the bit where rounding allows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.adam import adam

from engine.adam_kernel import LAUNCH, Launch, available, fused_adam

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's own, of all kinds and versions; what matters here is on the GPU
    pytest.mark.filterwarnings("default"),
]

BF16 = torch.bfloat16
SIZES = ((300, 4096), (5,), (0, 4), (1,), (7, 13), (2, LAUNCH.block))
RATES = (1e-2, 5e-3, 2e-2)
SETTINGS: dict[str, Any] = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


@dataclass(slots=True, kw_only=True)
class Held:
    """A set of weights and what belongs to them."""

    weights: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]


def begin(dtype: torch.dtype, sizes: tuple[tuple[int, ...], ...] = SIZES) -> Held:
    """The same tensors whenever it is called."""
    generator = torch.Generator("cuda").manual_seed(0)
    weights = [torch.randn(size, device="cuda", generator=generator).to(dtype) for size in sizes]
    return Held(
        weights=weights,
        exp_avgs=[torch.zeros_like(weight) for weight in weights],
        exp_avg_sqs=[torch.zeros_like(weight) for weight in weights],
        steps=[torch.zeros((), device="cuda") for _ in weights],
    )


def gradients_of(step: int, dtype: torch.dtype) -> list[Tensor]:
    """Those of a step."""
    generator = torch.Generator("cuda").manual_seed(step + 1)
    return [(torch.randn(size, device="cuda", generator=generator) * 1e-2).to(dtype) for size in SIZES]


def scalar(value: float) -> Tensor:
    """A float32 scalar on the device, without waiting for it."""
    return torch.full((), value, device="cuda")


def by_kernel(held: Held, gradients: list[Tensor], copies: list[Tensor] | None = None, **changes: Any) -> None:
    """One update by the kernel."""
    values = SETTINGS | {"lr": 1e-2, "decoupled": True, "divisor": None, "bad": scalar(0.0)} | changes
    fused_adam(
        weights=held.weights,
        gradients=gradients,
        exp_avgs=held.exp_avgs,
        exp_avg_sqs=held.exp_avg_sqs,
        steps=held.steps,
        copies=copies or [None] * len(held.weights),
        **values,
    )


def by_torch(held: Held, gradients: list[Tensor], *, lr: float, decoupled: bool, divisor: Tensor | None) -> None:
    """One update by torch's kernel, of the weights that have elements."""
    kept = [index for index, weight in enumerate(held.weights) if weight.numel()]
    lists = (held.weights, gradients, held.exp_avgs, held.exp_avg_sqs)
    weights, own, exp_avgs, exp_avg_sqs = ([some[index] for index in kept] for some in lists)
    own = [gradient.to(weight.dtype, copy=True) for gradient, weight in zip(own, weights, strict=True)]
    adam(
        weights, own, exp_avgs, exp_avg_sqs, [], [held.steps[index] for index in kept],
        foreach=False, fused=True, grad_scale=divisor, found_inf=scalar(0.0), amsgrad=False, maximize=False,
        lr=lr, decoupled_weight_decay=decoupled, **SETTINGS,
    )  # fmt: skip


def test_the_kernel_is_for_this_gpu() -> None:
    assert available(torch.device("cuda"))


@pytest.mark.parametrize("divisor", [None, 3.0])
@pytest.mark.parametrize("decoupled", [True, False], ids=["AdamW", "Adam"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, BF16), (BF16, BF16)], ids=str)
def test_updates_are_those_of_torchs_fused_kernel(
    dtypes: tuple[torch.dtype, torch.dtype], decoupled: bool, divisor: float | None
) -> None:
    mine, theirs = begin(dtypes[0]), begin(dtypes[0])
    by = None if divisor is None else scalar(divisor)
    # Where weights are bfloat16, one that is rounded to its neighbour has other gradients of its decay from then on.
    rates = RATES if dtypes[0] is torch.float32 else RATES[:1]
    for step, lr in enumerate(rates):
        by_kernel(mine, gradients_of(step, dtypes[1]), lr=lr, decoupled=decoupled, divisor=by)
        by_torch(theirs, gradients_of(step, dtypes[1]), lr=lr, decoupled=decoupled, divisor=by)
    # torch raises betas to powers in float32, which is up to 1e-6 of a correction, and an update is at most twice the
    # rate. Where weights are bfloat16 that tips a few to a neighbour, 2^-7 away at most.
    relative = 1e-6 if dtypes[0] is torch.float32 else 2.0**-7
    for name, absolute in (("weights", 1e-7), ("exp_avgs", 1e-8), ("exp_avg_sqs", 1e-10)):
        found, expected = ([one for one in getattr(held, name) if one.numel()] for held in (mine, theirs))
        same = [(a == b).float().mean().item() for a, b in zip(found, expected, strict=True)]
        print(f"{name}: {min(same):.4f} of the elements to the bit")
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)
    assert [step.item() for step in mine.steps] == [len(rates)] * len(SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_copies_are_weights_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    held = begin(torch.float32)
    copies = [torch.zeros_like(weight, dtype=BF16) for weight in held.weights]
    by_kernel(held, gradients_of(0, dtype), copies)
    assert all(torch.equal(copy, weight.to(BF16)) for copy, weight in zip(copies, held.weights, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_a_bad_step_changes_nothing_at_all(dtype: torch.dtype) -> None:
    held = begin(dtype)
    copies = [torch.ones_like(weight, dtype=BF16) for weight in held.weights]
    by_kernel(held, gradients_of(0, dtype), copies)
    everything = [*held.weights, *held.exp_avgs, *held.exp_avg_sqs, *held.steps, *copies]
    before = [one.clone() for one in everything]
    broken = [torch.full_like(weight, float("nan")) for weight in held.weights]
    by_kernel(held, broken, copies, divisor=scalar(float("nan")), bad=scalar(1.0))
    assert all(torch.equal(one, earlier) for one, earlier in zip(everything, before, strict=True))


def test_a_transposed_gradient_is_put_in_the_weights_order() -> None:
    straight, turned = begin(torch.float32), begin(torch.float32)
    gradients = gradients_of(0, BF16)
    by_kernel(straight, gradients)
    by_kernel(turned, [one.t().contiguous().t() if one.ndim == 2 else one for one in gradients])
    assert all(torch.equal(a, b) for a, b in zip(straight.weights, turned.weights, strict=True))


def test_the_cpu_never_waits_and_a_new_rate_compiles_nothing() -> None:
    import triton

    held, bad, by = begin(torch.float32), scalar(0.0), scalar(2.0)
    gradients = gradients_of(0, BF16)
    by_kernel(held, gradients, lr=0.5, bad=bad, divisor=by)
    compiled: list[object] = []
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **found: compiled.append(found["key"]))
            for lr in (0, 1, 1e-3):
                by_kernel(held, gradients, lr=lr, bad=bad, divisor=by)
            by_rate = len(compiled)
            by_kernel(held, gradients, bad=bad, divisor=by, launch=Launch(block=256, warps=2))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (by_rate, bool(compiled)) == (0, True)


def test_a_weight_may_have_more_than_two_to_the_31_elements() -> None:
    numel, tail = 2**31 + 3 * LAUNCH.block + 16, 4096
    if torch.cuda.mem_get_info()[0] < 6 * numel * BF16.itemsize:
        pytest.skip("needs 26 GB of free memory")
    large = Held(
        weights=[torch.full((numel,), 2.0, dtype=BF16, device="cuda")],
        exp_avgs=[torch.zeros(numel, dtype=BF16, device="cuda")],
        exp_avg_sqs=[torch.zeros(numel, dtype=BF16, device="cuda")],
        steps=[scalar(0.0)],
    )
    gradient = torch.ones(numel, dtype=BF16, device="cuda")
    gradient[-tail:] = -1.0
    by_kernel(large, [gradient], lr=1.0, weight_decay=0.0)
    (weight,) = large.weights
    # The first update is the rate, against the gradient.
    assert (weight[:-tail] == 1.0).all()
    assert (weight[-tail:] == 3.0).all()
