"""Data parallelism: FSDP2 around every block, in every layout.

Knows groups of weights, when gathered weights are freed, and precision. One code path for FSDP,
HSDP, plain replication (shards of one) and a single rank, so that mixed precision never depends
on the layout. Every collective is a SUM; the one division is the loop's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from engine.config import Training
from engine.model.llama import Block, Decoder

Reshard = Literal["default", "always", "never"]


def precision(training: Training) -> MixedPrecisionPolicy:
    """Weights, activations and gradient sums as the config names them.

    Inputs are not cast: tokens have no precision, blocks are fed by each other, and the rotary
    tables must stay in float32.
    """
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, training.mixed_precision_param),
        reduce_dtype=getattr(torch, training.mixed_precision_reduce),
        cast_forward_inputs=False,
    )


def shard(part: Decoder, mesh: DeviceMesh, *, policy: MixedPrecisionPolicy, reshard: Reshard, pipelined: bool) -> None:
    """Shards a part over `mesh`: one group a block, one for the embedding, one for norm and head.

    `default` frees gathered weights after forward, but never under a pipeline, where every
    microbatch would gather them again. The last group is needed again at once, so only `always` frees it.
    """
    frees = reshard == "always" or (reshard == "default" and not pipelined)

    def group(modules: nn.Module | list[nn.Module], *, free: bool) -> None:
        fully_shard(
            modules,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=free,
            shard_placement_fn=lambda weight: _across(weight, mesh),
        )

    for block in part.layers.values():
        group(block, free=frees)
    if not part.tied:
        if part.tok_embeddings is not None:
            group(part.tok_embeddings, free=frees)
            # The gradient of a table needs the tokens, not the table: no gather in backward.
            cast(FSDPModule, part.tok_embeddings).set_unshard_in_backward(False)
        if part.norm is not None and part.output is not None:
            group([part.norm, part.output], free=reshard == "always")
    # A tied weight is used at both ends, so it stays in the root's group, with the norm.
    group(part, free=reshard == "always")
    _sum_gradients(part, mesh)


def _across(weight: nn.Parameter, mesh: DeviceMesh) -> Shard | None:
    """Rows are cut, which is FSDP's own way and costs no copies; columns where rows lie unevenly on tensor ranks.

    A DTensor cannot say of uneven rows cut twice which of them a rank has: saving one would tear it.
    """
    if not isinstance(weight, DTensor) or mesh.size(mesh.ndim - 1) == 1:
        return None
    uneven = weight.placements[0].is_shard(0) and weight.shape[0] % weight.device_mesh.size() != 0
    return Shard(1) if uneven else None


def _sum_gradients(part: nn.Module, mesh: DeviceMesh) -> None:
    """Plain sums: FSDP would divide by the number of ranks. Gloo has no scaled sums, so both settings are needed.

    On a single rank there is nothing to divide by, and a factor of 1 would cost a pass over the gradients.
    """
    for module in _sharded(part):
        module.set_force_sum_reduction_for_comms(True)
        if mesh.size() > 1:
            module.set_gradient_divide_factor(1.0)


def set_last_accumulation(part: nn.Module, last: bool) -> None:
    """Copies of the model sum their gradients only in the last accumulation step; shards do in each.

    Under a pipeline its stages do that.
    """
    cast(FSDPModule, part).set_requires_all_reduce(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Weights that are gathered at once: in which precision, in which their gradients are summed, and how."""

    is_block: bool
    gathered: torch.dtype | None
    summed: torch.dtype | None
    plain_sum: bool
    frees: bool


def groups(part: nn.Module) -> list[Group]:
    """What FSDP will do with the weights of a part, read off its private state: tried on 2.11 and 2.13."""
    states = {id(module._get_fsdp_state()): module for module in _sharded(part)}  # norm and head share one
    found = [(module, module._get_fsdp_state()._fsdp_param_group) for module in states.values()]
    return [
        Group(
            is_block=isinstance(module, Block),
            gathered=group.mp_policy.param_dtype,
            summed=group.mp_policy.reduce_dtype,
            plain_sum=group.force_sum_reduction_for_comms
            and (group.gradient_divide_factor == 1.0 or group.mesh_info.mesh.size() == 1),
            frees=group.post_forward_mesh_info is not None,
        )
        for module, group in found
        if group is not None
    ]


def _sharded(part: nn.Module) -> list[FSDPModule]:
    return [module for module in part.modules() if isinstance(module, FSDPModule)]
