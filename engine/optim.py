"""The optimizer's update and the norm of the gradient.

Knows Adam, AdamW and SGD on whatever part of a weight a rank holds, clipping, and that a
non-finite gradient must change nothing, without asking the CPU. Does not know the learning rate's
curve (lr.py) or when a step is over (loop.py). torch's private `_foreach_norm`, `_foreach_div_` and
the functional `adam` and `sgd` stand here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from engine import adam_kernel
from engine.config import Optimizer as OptimizerConfig

Order = Literal[2, "inf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorm:
    """Norm of the whole gradient, a float32 scalar, and `local_N`: of each gradient what this rank holds of it."""

    total: Tensor
    local_N: Tensor


def gradient_norm(
    gradients: Sequence[Tensor],
    *,
    order: Order = 2,
    pipeline: dist.ProcessGroup | None = None,
    loss: Tensor | None = None,
) -> GradientNorm:
    """The norm over all ranks, the same bits on every rank, for plain, sharded and replicated gradients in any mix.

    Every element counts once: squares are summed over all axes of a gradient's mesh and divided
    by its copies, so that a copy that went wrong on one rank is seen by all. Plain gradients are
    whole on every rank. `pipeline` is the group of ranks that hold other layers. A NaN anywhere gives
    NaN (order 2) or infinity ("inf"). A `loss` of any rank that is not finite gives infinity, though its gradients may
    be finite (a label whose logit is -inf). Nothing waits for the device.
    """
    locals_ = [_local(gradient) for gradient in gradients]
    held = [local for local in locals_ if local.numel()]
    power = 2.0 if order == 2 else float("inf")
    device = locals_[0].device
    # CPU kernels sum in a row: in float32 that loses 5e-7 of a norm, another 5e-7 in every layout.
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    found = iter(torch._foreach_norm(held, power, dtype=dtype) if held else ())
    nothing = torch.zeros((), dtype=dtype, device=device)
    norms = [next(found) if local.numel() else nothing for local in locals_]
    bad = nothing if loss is None else torch.where(loss.isfinite(), 0.0, float("inf"))
    total = _over_ranks(gradients, norms, order=order, pipeline=pipeline, more=bad.double())
    return GradientNorm(total=total.float(), local_N=torch.stack(norms))


def _over_ranks(
    gradients: Sequence[Tensor],
    norms: Sequence[Tensor],
    *,
    order: Order,
    pipeline: dist.ProcessGroup | None,
    more: Tensor,
) -> Tensor:
    """Joins local norms in float64, one small collective for each axis of each mesh; `more` is added to each."""
    by_mesh: dict[tuple[dist.ProcessGroup, ...], dict[int, list[Tensor]]] = {}
    for gradient, norm in zip(gradients, norms, strict=True):
        groups, copies = _spread(gradient)
        by_mesh.setdefault(groups, {}).setdefault(copies, []).append(norm)
    operation = dist.ReduceOp.SUM if order == 2 else dist.ReduceOp.MAX
    join = torch.sum if order == 2 else torch.max
    joined: list[Tensor] = []
    for groups, by_copies in by_mesh.items():
        parts = [join(_terms(some, order)) / (copies if order == 2 else 1) for copies, some in by_copies.items()]
        part = join(torch.stack(parts)) + more
        for group in groups:
            dist.all_reduce(part, op=operation, group=group)
        joined.append(part)
    total = join(torch.stack(joined))
    if pipeline is not None:
        dist.all_reduce(total, op=operation, group=pipeline)
    return total.sqrt() if order == 2 else total


def _terms(norms: Sequence[Tensor], order: Order) -> Tensor:
    """What is summed, or of which the largest is taken: a reduction may drop a NaN, so there it is infinite."""
    norms_N = torch.stack(list(norms)).double()
    return norms_N.square() if order == 2 else norms_N.nan_to_num(nan=float("inf"), posinf=float("inf"))


def _spread(gradient: Tensor) -> tuple[tuple[dist.ProcessGroup, ...], int]:
    """The groups of a gradient's mesh with more than one rank, and on how many ranks each element is."""
    if not isinstance(gradient, DTensor):
        return (), 1
    assert not any(placement.is_partial() for placement in gradient.placements), "a gradient was not summed over ranks"
    mesh = gradient.device_mesh
    sizes = [mesh.size(axis) for axis in range(mesh.ndim)]
    copies = prod(size for size, where in zip(sizes, gradient.placements, strict=True) if where.is_replicate())
    return tuple(mesh.get_group(axis) for axis, size in enumerate(sizes) if size > 1), copies


def clip_divisor(norm: Tensor, max_norm: float) -> Tensor:
    """What gradients are divided by so that their norm is at most `max_norm`: never below 1."""
    return (norm / max_norm).clamp(min=1.0)


class _Allocating:
    """`step` only allocates states, at count 0.

    It is what torch's checkpoint code calls to make states exist; as a real step it would
    leave a count of 1 behind and make the first update 1.34 times too small. `update` trains.
    """

    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Allocates the states of all weights that have none."""
        assert closure is None, "closures are not supported"
        allocate(self)  # type: ignore[arg-type]


class Adam(_Allocating, torch.optim.Adam):  # type: ignore[misc]
    """Adam, and AdamW where weight decay is decoupled (arXiv 1412.6980, 1711.05101): torch's, with its state format."""


class SGD(_Allocating, torch.optim.SGD):  # type: ignore[misc]
    """Plain gradient descent: no momentum, no state."""


def make_optimizer(config: OptimizerConfig, weights: Iterable[nn.Parameter]) -> Adam | SGD:
    """The optimizer of the config over `weights`; its states come with the first update."""
    kernel = {"fused": config.implementation == "fused", "foreach": config.implementation == "foreach"}
    if config.name == "SGD":
        return SGD(weights, lr=config.lr, weight_decay=config.weight_decay, **kernel)
    return Adam(
        weights,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        decoupled_weight_decay=config.name == "AdamW",
        **kernel,
    )


def allocate(optimizer: Adam | SGD) -> None:
    """Gives every weight its states: both means zero, sharded like the weight, and a count of 0 updates."""
    if isinstance(optimizer, SGD):
        return
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not optimizer.state[weight]:
                # Only the fused kernel counts on the device; the others read the count on the CPU.
                device = weight.device if group["fused"] else torch.device("cpu")
                optimizer.state[weight] = {
                    "step": torch.zeros((), dtype=torch.float32, device=device),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }


@torch.no_grad()
def update(
    optimizer: Adam | SGD,
    gradients: Sequence[Tensor],
    *,
    lr: float,
    divisor: Tensor | None,
    bad: Tensor,
    copies: Sequence[Tensor | None] = (),
) -> None:
    """One update with the gradients divided by `divisor`, or none at all where `bad` (float32, 0 or 1) is 1.

    Gradients stand in the order of the optimizer's weights, in any precision; beside them `copies`, which become
    what the weights have become. Fused kernels take both scalars on the device, which saves a pass over the gradients;
    the other implementations ask the CPU. Works on what this rank holds: the update of an element needs no other.
    """
    allocate(optimizer)
    (group,) = optimizer.param_groups
    group["lr"] = lr
    held = [
        Held(weight, _local(gradient), copy)
        for weight, gradient, copy in zip_longest(group["params"], gradients, copies)
        if _local(weight).numel()
    ]
    if not held:
        return
    if group["fused"] and isinstance(optimizer, Adam) and adam_kernel.available(bad.device):
        _apply_in_one_pass(optimizer, group, held, divisor=divisor, bad=bad)
        return
    if group["fused"]:
        _apply(optimizer, group, held, grad_scale=divisor, found_inf=bad)
    elif not bad:
        _apply(optimizer, group, held, grad_scale=None, found_inf=None, divisor=divisor)
    apart = [(one.copy, _local(one.weight)) for one in held if one.copy is not None]
    if apart:
        torch._foreach_copy_([copy for copy, _ in apart], [weight for _, weight in apart])


class Held(NamedTuple):
    """A weight, what this rank has of its gradient, and what follows the weight in memory of its own, if anything."""

    weight: nn.Parameter
    gradient: Tensor
    copy: Tensor | None


def _apply_in_one_pass(
    optimizer: Adam, group: dict[str, Any], held: Sequence[Held], *, divisor: Tensor | None, bad: Tensor
) -> None:
    states = [optimizer.state[one.weight] for one in held]
    beta1, beta2 = group["betas"]
    adam_kernel.fused_adam(
        weights=[_plain(one.weight) for one in held],
        gradients=[_plain(one.gradient) for one in held],
        exp_avgs=[_plain(state["exp_avg"]) for state in states],
        exp_avg_sqs=[_plain(state["exp_avg_sq"]) for state in states],
        steps=[state["step"] for state in states],
        copies=[one.copy for one in held],
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        decoupled=group["decoupled_weight_decay"],
        divisor=divisor,
        bad=bad,
    )


def _apply(
    optimizer: Adam | SGD,
    group: dict[str, Any],
    held: Sequence[Held],
    *,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    divisor: Tensor | None = None,
) -> None:
    kernel = {
        "foreach": bool(group["foreach"]),
        "fused": bool(group["fused"]),
        "grad_scale": grad_scale,
        "found_inf": found_inf,
        "lr": group["lr"],
        "weight_decay": group["weight_decay"],
        "maximize": False,
    }
    values = [_local(one.weight) for one in held]
    # torch's kernels take gradients in the precision of weights, and the fused one of a CPU reads past strides.
    gradients = [one.gradient.to(value.dtype).contiguous() for one, value in zip(held, values, strict=True)]
    if divisor is not None:
        torch._foreach_div_(gradients, divisor.to(gradients[0].dtype))
    if isinstance(optimizer, SGD):
        empty: list[Tensor | None] = [None] * len(values)
        sgd(values, gradients, empty, momentum=0.0, dampening=0.0, nesterov=False, **kernel)
        return
    states = [optimizer.state[one.weight] for one in held]
    beta1, beta2 = group["betas"]
    adam(
        values,
        gradients,
        [_local(state["exp_avg"]) for state in states],
        [_local(state["exp_avg_sq"]) for state in states],
        [],
        [state["step"] for state in states],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        decoupled_weight_decay=group["decoupled_weight_decay"],
        **kernel,
    )


def _plain(tensor: Tensor) -> Tensor:
    """What this rank holds, without torchao's class around a weight that is gathered in float8: the same memory."""
    local = _local(tensor)
    return cast(Tensor, getattr(local, "_tensor", local))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
