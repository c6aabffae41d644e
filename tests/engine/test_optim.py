"""The update and the norm of the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from engine.config import Optimizer
from engine.optim import Adam, allocate, clip_divisor, gradient_norm, make_optimizer, update

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)
KERNELS = ["fused", "foreach", "for-loop"]


def one_weight(value: float = 5.0, gradient: float = 1.0) -> nn.Parameter:
    """A weight of one element with a gradient."""
    weight = nn.Parameter(torch.tensor([value]))
    weight.grad = torch.tensor([gradient])
    return weight


def step(optimizer: Any, **values: Any) -> None:
    """An update with the gradients that backward has left at the weights."""
    update(optimizer, [weight.grad for weight in optimizer.param_groups[0]["params"]], **values)


def config(**values: Any) -> Optimizer:
    """The plain optimizer of C28, with changes."""
    return Optimizer(**({"lr": 1.0, "beta2": 0.999, "weight_decay": 0.0} | values))


# ---- norm ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "expected"), [(2, 13.0), ("inf", 12.0)])
def test_the_norm_of_plain_gradients(order: Any, expected: float) -> None:
    norm = gradient_norm([torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])], order=order)
    assert norm.total.item() == expected


def test_local_norms_are_those_of_each_gradient() -> None:
    norm = gradient_norm([torch.tensor([3.0, 4.0]), torch.zeros(0), torch.tensor([12.0])])
    assert norm.local_N.tolist() == [5.0, 0.0, 12.0]


@pytest.mark.parametrize("order", [2, "inf"])
def test_a_nan_makes_the_norm_not_finite(order: Any) -> None:
    norm = gradient_norm([torch.tensor([1.0]), torch.tensor([float("nan"), 2.0])], order=order)
    assert not norm.total.isfinite()


def test_a_bf16_gradient_is_measured_in_float32() -> None:
    gradient = torch.full((1000,), 1.0, dtype=torch.bfloat16)
    assert gradient_norm([gradient]).total.item() == pytest.approx(1000**0.5, rel=1e-6)


def stage_norms(order: Any) -> float:
    """Rank 0 is a stage with norm 3, rank 1 one with norm 4."""
    mine = torch.tensor([3.0 if dist.get_rank() == 0 else 4.0])
    return gradient_norm([mine], order=order, pipeline=dist.group.WORLD).total.item()


@pytest.mark.world
@pytest.mark.parametrize(("order", "expected"), [(2, 5.0), ("inf", 4.0)])
def test_c20_the_norm_goes_over_pipeline_stages(order: Any, expected: float, gloo: GlooPool) -> None:
    assert gloo.run(2, stage_norms, order=order) == [expected, expected]


def test_c20_one_factor_scales_all_stages() -> None:
    assert (torch.tensor([3.0, 4.0]) / clip_divisor(torch.tensor(5.0), 1.0)).tolist() == pytest.approx([0.6, 0.8])


def mixed_norm(with_plain: bool) -> float:
    """A weight sharded over two ranks (3 | 4), one replicated (12), and maybe a plain one (84)."""
    mesh = init_device_mesh("cpu", (2,))
    mine = torch.tensor([3.0 if dist.get_rank() == 0 else 4.0])
    gradients: list[torch.Tensor] = [
        DTensor.from_local(mine, mesh, [Shard(0)]),
        DTensor.from_local(torch.tensor([12.0]), mesh, [Replicate()]),
    ]
    return gradient_norm([*gradients, torch.tensor([84.0])] if with_plain else gradients).total.item()


@pytest.mark.world
def test_c20_a_replicated_part_counts_once(gloo: GlooPool) -> None:
    assert gloo.run(2, mixed_norm, with_plain=False) == [13.0, 13.0]


@pytest.mark.world
def test_c20_plain_and_sharded_gradients_mix(gloo: GlooPool) -> None:
    assert gloo.run(2, mixed_norm, with_plain=True) == [85.0, 85.0]


def uneven_norm(copies: int, shards: int) -> tuple[float, float]:
    """Five rows over the shards of a 2D mesh; our norm, and that of the whole."""
    mesh = init_device_mesh("cpu", (copies, shards))
    whole = torch.arange(10.0).view(5, 2)
    sharded = DTensor.from_local(
        whole.chunk(shards)[mesh.get_local_rank(1)] if mesh.get_local_rank(1) < len(whole.chunk(shards)) else whole[:0],
        mesh,
        [Replicate(), Shard(0)],
        shape=whole.shape,
        stride=whole.stride(),
    )
    return gradient_norm([sharded]).total.item(), whole.norm().item()


@pytest.mark.world
@pytest.mark.parametrize(("copies", "shards"), [(1, 4), (2, 2), (4, 1)])
def test_rows_shared_out_unevenly_and_copies_give_the_norm_of_the_whole(
    copies: int, shards: int, gloo: GlooPool
) -> None:
    for ours, whole in gloo.run(4, uneven_norm, copies=copies, shards=shards):
        assert ours == pytest.approx(whole, rel=1e-6)


# ---- update ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_c28_the_first_adam_update_is_the_learning_rate(kernel: str) -> None:
    weight = one_weight()
    step(make_optimizer(config(implementation=kernel), [weight]), lr=1.0, divisor=None, bad=GOOD)
    assert 5.0 - weight.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize("kernel", KERNELS)
def test_c28_asking_for_the_state_before_training_does_not_count_as_an_update(kernel: str) -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 5.0)
    optimizer = make_optimizer(config(implementation=kernel), module.parameters())
    optimizer.state_dict()
    get_optimizer_state_dict(module, optimizer)  # makes torch call step() with gradients of zero
    module.weight.grad = torch.ones(1, 1)
    step(optimizer, lr=1.0, divisor=None, bad=GOOD)
    assert 5.0 - module.weight.item() == pytest.approx(1.0, abs=1e-6)


def test_c28_a_state_saved_and_loaded_at_step_0_does_not_count_as_an_update() -> None:
    weight = one_weight()
    saved = make_optimizer(config(), [weight])
    allocate(saved)
    loaded = make_optimizer(config(), [weight])
    loaded.load_state_dict(saved.state_dict())
    step(loaded, lr=1.0, divisor=None, bad=GOOD)
    assert 5.0 - weight.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_updates_are_those_of_torch(name: str, kernel: str) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(7, 5), torch.randn(4, 7, 5)
    values = {"lr": 0.1, "weight_decay": 0.3}
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = make_optimizer(config(name=name, implementation=kernel, **values), [mine])
    betas = {} if name == "SGD" else {"betas": (0.9, 0.999)}
    reference = getattr(torch.optim, name)([theirs], **values, **betas)
    for gradient in gradients:
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        step(optimizer, lr=0.1, divisor=None, bad=GOOD)
        reference.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_the_divisor_is_a_clip(name: str, kernel: str) -> None:
    clipped, small = one_weight(gradient=10.0), one_weight(gradient=2.0)
    for weight, divisor in ((clipped, torch.tensor(5.0)), (small, None)):
        optimizer = make_optimizer(config(name=name, implementation=kernel, eps=1.0), [weight])
        step(optimizer, lr=1.0, divisor=divisor, bad=GOOD)
    torch.testing.assert_close(clipped, small)


def test_a_norm_below_the_limit_scales_nothing() -> None:
    assert clip_divisor(torch.tensor(0.5), 1.0).item() == 1.0
    assert clip_divisor(torch.tensor(0.0), 1.0).item() == 1.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_a_bad_step_changes_no_weight_and_no_state(name: str, kernel: str) -> None:
    weight = one_weight()
    optimizer = make_optimizer(config(name=name, implementation=kernel, weight_decay=0.1), [weight])
    step(optimizer, lr=1.0, divisor=None, bad=GOOD)
    value = weight.item()
    state = {key: tensor.clone() for key, tensor in optimizer.state[weight].items()}
    weight.grad = torch.tensor([float("nan")])
    step(optimizer, lr=1.0, divisor=torch.tensor(float("nan")), bad=BAD)
    assert weight.item() == value
    assert all(torch.equal(optimizer.state[weight][key], tensor) for key, tensor in state.items())


def test_the_learning_rate_is_that_of_the_call() -> None:
    weight = one_weight()
    step(make_optimizer(config(name="SGD"), [weight]), lr=0.25, divisor=None, bad=GOOD)
    assert weight.item() == 4.75


def test_states_come_with_the_first_update() -> None:
    weight = one_weight()
    optimizer = make_optimizer(config(), [weight])
    assert isinstance(optimizer, Adam)
    assert not optimizer.state
    step(optimizer, lr=1.0, divisor=None, bad=GOOD)
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_c20_the_norm_of_many_elements_does_not_depend_on_how_they_are_cut() -> None:
    gradient = torch.rand(2_000_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    exact = float(gradient.double().norm())
    whole = float(gradient_norm([gradient]).total)
    pieces = float(gradient_norm(list(gradient.chunk(4))).total)
    # 6e-8 is the rounding of a float32; its own running sum would be off by 1e-6 and more.
    assert (whole, pieces) == (pytest.approx(exact, rel=7e-8), pytest.approx(exact, rel=7e-8))
