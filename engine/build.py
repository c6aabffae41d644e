"""The whole order of construction, on one page.

Knows which step comes after which and checks what was built against the Plan. Does not know how
any of them is done (model/, parallel/, optim.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from engine.config import Config
from engine.model.initial import materialise
from engine.model.llama import Decoder
from engine.model.loss import CrossEntropy, cross_entropy_sum, head_loss
from engine.optim import SGD, Adam, make_optimizer
from engine.parallel.async_tp import apply_async_tensor_parallel, count_fused
from engine.parallel.compile import compile_blocks, compile_loss
from engine.parallel.context import apply_context_parallel
from engine.parallel.mesh import World, build_world
from engine.parallel.pipeline import Pipeline, build_pipeline
from engine.parallel.quantize import after_update, apply_float8, apply_mx, gather_in_float8
from engine.parallel.recompute import apply_recompute
from engine.parallel.shard import precision, shard
from engine.parallel.tensor import apply_tensor_parallel
from engine.planner.overlap import has_async_tp
from engine.planner.plan import Plan, Stage, held_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a rank trains: the parts of the model that it holds, one for each of its pipeline stages.

    With `gathers_float8`, whoever changes weights calls `quantize.after_update`. `pipeline` runs the parts, where
    other ranks have others.
    """

    device: torch.device
    world: World
    parts: tuple[Decoder, ...]
    optimizer: Adam | SGD
    weights: dict[str, nn.Parameter]
    gathers_float8: bool = False
    pipeline: Pipeline | None = None

    @property
    def local_parameters(self) -> int:
        """Weights that this rank keeps, in elements."""
        return sum(local_numel(weight) for weight in self.weights.values())

    @property
    def counts_loss(self) -> bool:
        """Whether this rank's loss enters the sum over the world.

        It is computed where the head is, and tensor ranks have all the same.
        """
        return self.world.rank_on("tp") == 0 and any(part.output is not None for part in self.parts)

    @property
    def gradients(self) -> list[torch.Tensor]:
        """The gradient of every weight, in the order of `weights`; there is one after each backward."""
        found = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        assert len(found) == len(self.weights), "a weight has no gradient"
        return found


Fill: TypeAlias = Callable[[Decoder, int, torch.device], None]
"""Allocates a part that was built on the meta device, and completes it: part, seed, device."""


def build(config: Config, plan: Plan, device: torch.device, *, fill: Fill = materialise) -> Built:
    """Builds this rank's share; every rank of the plan calls it at once, within a process group."""
    world = build_world(plan.mesh, device.type)
    stage = plan.stages[world.rank_on("pp")]
    parts = tuple(_part(config, plan, index, layers) for index, layers in stage.parts)
    dense = config.quantize.dense
    for part in parts:
        if dense.float8.enable:
            apply_float8(part, dense.float8, tp=plan.mesh.tp)
        if dense.mx.enable:
            apply_mx(part, dense.mx, tp=plan.mesh.tp)
    if plan.mesh.cp > 1:
        for part in parts:
            apply_context_parallel(
                part,
                world.axes["cp"],
                method=config.parallelism.context_parallel_method,
                balance=config.parallelism.context_parallel_load_balance,
            )
    entropy: CrossEntropy = cross_entropy_sum
    if plan.mesh.tp > 1:
        loss_parallel = not config.parallelism.disable_loss_parallel
        for part in parts:
            entropy = apply_tensor_parallel(part, world.axes["tp"], loss_parallel=loss_parallel)
    if has_async_tp(config):
        for part in parts:
            apply_async_tensor_parallel(part, world.axes["tp"])
            assert not part.layers or count_fused(part) > 0, "async tensor parallel is active, and nothing is fused"
    for part in parts:
        apply_recompute(part, plan.recompute)
    # Compile before FSDP: its hooks would otherwise break every block's graph.
    if config.compile.enable and "model" in config.compile.components:
        for part in parts:
            compile_blocks(part)
    for part in parts:
        if part.output is not None:
            head = part.output
            head.loss = head_loss(product=head.product, cross_entropy=entropy, chunks=config.training.loss_chunks)
            if config.compile.enable and "loss" in config.compile.components:
                compile_loss(head)
    gathers = dense.float8.enable and dense.float8.enable_fsdp_float8_all_gather and world.fsdp.size() > 1
    for part in parts:
        if gathers:
            gather_in_float8(part, dense.float8, shards=world.fsdp.size())
        shard(
            part,
            world.sharding,
            policy=precision(config.training),
            reshard=config.parallelism.fsdp_reshard_after_forward,
            pipelined=plan.mesh.pp > 1,
        )
    for part in parts:
        fill(part, config.debug.seed, device)
    if gathers:
        after_update(parts)
    weights = {name: weight for part in parts for name, weight in part.named_parameters()}
    _assert_facts(config, plan, stage, world=world, weights=weights)
    optimizer = make_optimizer(config.optimizer, weights.values())
    return Built(
        device=device,
        world=world,
        parts=parts,
        optimizer=optimizer,
        weights=weights,
        gathers_float8=gathers,
        pipeline=_pipeline(config, plan, stage, world=world, parts=parts, device=device) if plan.mesh.pp > 1 else None,
    )


def _part(config: Config, plan: Plan, index: int, layers: tuple[int, ...]) -> Decoder:
    """One pipeline stage on the meta device, in the precision that weights are kept in."""
    with torch.device("meta"):
        part = Decoder(
            plan.model,
            layers,
            first=index == 0,
            last=index == plan.stage_count - 1,
            seq_len=config.training.seq_len,
        )
    return part.to(getattr(torch, config.training.dtype))


def _pipeline(
    config: Config, plan: Plan, stage: Stage, *, world: World, parts: tuple[Decoder, ...], device: torch.device
) -> Pipeline:
    """The schedule over this rank's parts."""
    return build_pipeline(
        parts,
        world.axes["pp"],
        indices=[index for index, _ in stage.parts],
        stage_count=plan.stage_count,
        schedule=config.parallelism.pipeline_parallel_schedule,
        microbatches=plan.microbatches,
        microbatch_size=plan.microbatch_size,
        context_ranks=plan.mesh.cp,
        dtype=getattr(torch, config.training.mixed_precision_param),
        device=device,
    )


def local_numel(weight: torch.Tensor) -> int:
    """Elements of a weight that this rank holds."""
    return weight.to_local().numel() if isinstance(weight, DTensor) else weight.numel()


def _assert_facts(config: Config, plan: Plan, stage: Stage, *, world: World, weights: dict[str, nn.Parameter]) -> None:
    """The Plan's promises, held against what was built."""
    layers = sorted(layer for other in plan.stages for layer in other.layers)
    assert layers == list(range(plan.model.n_layers)), f"the stages hold the layers {layers}"
    assert sum(other.parameters for other in plan.stages) == plan.parameters, "the stages do not add up to the model"
    promised = held_parameters(plan.model, stage.parts, stage_count=plan.stage_count)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    assert shapes == {name: weight.shape for name, weight in promised.items()}, "other weights than planned"
    built = sum(weight.numel() for weight in weights.values())
    assert built == stage.parameters, f"{built} parameters built, {stage.parameters} planned"
    local = sum(local_numel(weight) for weight in weights.values())
    largest = world.fsdp.get_local_rank() == world.rank_on("tp") == 0
    assert local == stage.local_parameters if largest else local <= stage.local_parameters, (
        f"this rank holds {local} parameters, {stage.local_parameters} planned"
    )
    dtypes = {weight.dtype for weight in weights.values()}
    assert dtypes == {getattr(torch, config.training.dtype)}, f"weights are kept in {dtypes}"
