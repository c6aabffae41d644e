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
from engine.parallel.quantize import Skipped, after_update, apply_float8, apply_mx, gather_in_float8
from engine.parallel.recompute import apply_recompute
from engine.parallel.shard import precision, shard
from engine.parallel.tensor import apply_tensor_parallel
from engine.parallel.whole import Whole, hold_whole
from engine.planner.overlap import has_async_tp
from engine.planner.plan import Plan, Stage
from engine.planner.update import holds_whole, makes_copies
from engine.promises import assert_promises, local_numel


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a rank trains: the parts of the model that it holds, one for each of its pipeline stages.

    `weights` are those that are updated and saved; where no data rank shares them, `whole` has what is computed with
    and the gradients. `pipeline` runs the parts, where other ranks have others. Whoever changes weights calls
    `weights_changed`.
    """

    device: torch.device
    world: World
    parts: tuple[Decoder, ...]
    optimizer: Adam | SGD
    weights: dict[str, nn.Parameter]
    whole: Whole | None = None
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
        if self.whole is not None:
            return self.whole.gradients()
        found = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        assert len(found) == len(self.weights), "a weight has no gradient"
        return found

    @property
    def copies(self) -> list[torch.Tensor | None]:
        """Beside every weight, in the order of `weights`, what has to follow it in memory of its own, if anything."""
        whole = self.whole
        if whole is None:
            return [None] * len(self.weights)
        return [whole.copies[name] if whole.follows(name) else None for name in self.weights]

    def zero_grad(self) -> None:
        """Drops all gradients."""
        if self.whole is not None:
            self.whole.zero_grad()
        else:
            self.optimizer.zero_grad()

    def weights_changed(self) -> None:
        """What has to follow once weights were loaded; every rank calls it at once."""
        if self.whole is not None:
            self.whole.refresh()
        self.scales_changed()

    def scales_changed(self) -> None:
        """The same after an update, which has written copies itself."""
        if self.gathers_float8:
            after_update(self.parts)


Fill: TypeAlias = Callable[[Decoder, int, torch.device], None]
"""Allocates a part that was built on the meta device, and completes it: part, seed, device."""


def build(config: Config, plan: Plan, device: torch.device, *, fill: Fill = materialise) -> Built:
    """Builds this rank's share; every rank of the plan calls it at once, within a process group."""
    world = build_world(plan.mesh, device.type)
    stage = plan.stages[world.rank_on("pp")]
    parts = tuple(_part(config, plan, index, layers) for index, layers in stage.parts)
    float8 = config.quantize.dense.float8
    gathers = float8.enable and float8.enable_fsdp_float8_all_gather and world.fsdp.size() > 1
    skipped: Skipped = {}
    for part in parts:
        skipped |= _multiply_in_low_precision(part, config, tp=plan.mesh.tp)
        entropy = _split(part, config, plan, world)
        apply_recompute(part, plan.recompute)
        _compile(part, config, entropy)
        if gathers:
            gather_in_float8(part, float8, shards=world.fsdp.size())
        if not holds_whole(plan.mesh):
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
    whole = _whole(config, plan, parts) if holds_whole(plan.mesh) else None
    assert_promises(config, plan, world=world, parts=parts, skipped=skipped, weights=weights)
    return Built(
        device=device,
        world=world,
        parts=parts,
        optimizer=make_optimizer(config.optimizer, weights.values()),
        weights=weights,
        whole=whole,
        gathers_float8=gathers,
        pipeline=_pipeline(config, plan, stage, world=world, parts=parts, whole=whole, device=device)
        if plan.mesh.pp > 1
        else None,
    )


def _whole(config: Config, plan: Plan, parts: tuple[Decoder, ...]) -> Whole:
    """The weights of a rank that shares them with none, once they are filled."""
    whole = hold_whole(
        parts,
        products=getattr(torch, config.training.mixed_precision_param),
        sums=getattr(torch, config.training.mixed_precision_reduce),
        accumulates=plan.backwards > 1,
    )
    if makes_copies(config, plan.mesh):
        for part in parts:
            for block in part.layers.values():
                whole.free_between_uses(block, in_backward=True)
            if part.tok_embeddings is not None and not part.tied:
                whole.free_between_uses(part.tok_embeddings, in_backward=False)
    return whole


def _multiply_in_low_precision(part: Decoder, config: Config, *, tp: int) -> Skipped:
    """Float8 or MXFP8 in the linear layers that can; gives those that are left out, with the reason."""
    dense = config.quantize.dense
    if dense.float8.enable:
        return apply_float8(part, dense.float8, tp=tp)
    return apply_mx(part, dense.mx, tp=tp) if dense.mx.enable else {}


def _split(part: Decoder, config: Config, plan: Plan, world: World) -> CrossEntropy:
    """Sequence, heads, hidden units and vocabulary over their axes; gives the loss of this rank's logits."""
    p = config.parallelism
    if plan.mesh.cp > 1:
        apply_context_parallel(
            part, world.axes["cp"], method=p.context_parallel_method, balance=p.context_parallel_load_balance
        )
    if plan.mesh.tp == 1:
        return cross_entropy_sum
    entropy = apply_tensor_parallel(part, world.axes["tp"], loss_parallel=not p.disable_loss_parallel)
    if has_async_tp(config):
        apply_async_tensor_parallel(part, world.axes["tp"])
        # Counted while the part is on the meta device, where running a block costs nothing.
        assert not part.layers or count_fused(part) > 0, "async tensor parallel is active, and nothing is fused"
    return entropy


def _compile(part: Decoder, config: Config, entropy: CrossEntropy) -> None:
    """Makes head and loss one function, and compiles what is asked for: before FSDP, whose hooks break graphs."""
    components = config.compile.components if config.compile.enable else ()
    if "model" in components:
        compile_blocks(part)
    head = part.output
    if head is not None:
        head.loss = head_loss(product=head.product, cross_entropy=entropy, chunks=config.training.loss_chunks)
        if "loss" in components:
            compile_loss(head)


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
    config: Config,
    plan: Plan,
    stage: Stage,
    *,
    world: World,
    parts: tuple[Decoder, ...],
    whole: Whole | None,
    device: torch.device,
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
        collect=None if whole is None else whole.collect,
    )
