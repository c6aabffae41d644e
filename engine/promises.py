"""What the Plan promised, held against what was built.

Knows every fact of a built rank that can be read off it: its layers and weights, how many of them it keeps, in
which precision they are kept, gathered and summed, and that each technique which the settings call
active is in force. Raises AssertionError with the broken promise in words: that is a fault of the
builder, never of a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from engine.config import Config
from engine.model.attention import causal
from engine.model.linear import Linear, spread
from engine.model.llama import Block, Decoder
from engine.parallel.mesh import World
from engine.parallel.quantize import Skipped
from engine.parallel.shard import Reshard, groups
from engine.planner.held import held_parameters
from engine.planner.plan import Plan, Stage
from engine.planner.recompute import Recompute
from engine.planner.update import holds_whole


def assert_promises(
    config: Config,
    plan: Plan,
    *,
    world: World,
    parts: Sequence[Decoder],
    skipped: Skipped,
    weights: Mapping[str, nn.Parameter],
) -> None:
    """Checks one built rank; `skipped` are the linear layers that low precision left out, `weights` what is updated."""
    stage = plan.stages[world.rank_on("pp")]
    _assert_layers(plan, stage, parts)
    _assert_weights(config, plan, stage, world=world, weights=weights)
    if holds_whole(plan.mesh):
        _assert_whole(config, parts)
    else:
        _assert_collectives(config, plan, parts)
    for part in parts:
        for layer, block in part.layers.items():
            assert isinstance(block, Block)
            _assert_block(config, plan, block, layer=int(layer))
        _assert_low_precision(config, part, skipped)
        assert (part.order is None) == (plan.mesh.cp == 1), f"cp={plan.mesh.cp}, and a part has other tokens"


def local_numel(weight: Tensor) -> int:
    """Elements of a weight that this rank holds."""
    return weight.to_local().numel() if isinstance(weight, DTensor) else weight.numel()


def _assert_layers(plan: Plan, stage: Stage, parts: Sequence[Decoder]) -> None:
    layers = sorted(layer for other in plan.stages for layer in other.layers)
    assert layers == list(range(plan.model.n_layers)), f"the stages hold the layers {layers}"
    assert sum(other.parameters for other in plan.stages) == plan.parameters, "the stages do not add up to the model"
    built = tuple(int(layer) for part in parts for layer in part.layers)
    assert built == stage.layers, f"this rank holds the layers {built}, {stage.layers} are planned"


def _assert_weights(
    config: Config, plan: Plan, stage: Stage, *, world: World, weights: Mapping[str, nn.Parameter]
) -> None:
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


def _assert_collectives(config: Config, plan: Plan, parts: Sequence[Decoder]) -> None:
    """Weights are gathered, and gradients summed, in the precisions that are asked for, by plain sums."""
    gathered, summed = (
        getattr(torch, name) for name in (config.training.mixed_precision_param, config.training.mixed_precision_reduce)
    )
    reshard: Reshard = config.parallelism.fsdp_reshard_after_forward
    frees = reshard == "always" or (reshard == "default" and plan.mesh.pp == 1)
    for part in parts:
        found = groups(part)
        ends = (part.tok_embeddings is not None) + (part.output is not None) if not part.tied else 1
        assert len(found) == len(part.layers) + ends, f"{len(found)} groups of weights in {len(part.layers)} layers"
        for group in found:
            assert group.gathered is gathered, f"weights are gathered in {group.gathered}, not {gathered}"
            assert group.summed is summed, f"gradients are summed in {group.summed}, not {summed}"
            assert group.plain_sum, "a group of gradients is not a plain sum"
            assert group.frees == frees or not group.is_block, f"a block frees its weights: {group.frees}"


def _assert_whole(config: Config, parts: Sequence[Decoder]) -> None:
    """What is computed with is on this rank alone, in the precision that is asked for."""
    products = getattr(torch, config.training.mixed_precision_param)
    for part in parts:
        assert not groups(part), "FSDP takes care of weights that no other data rank shares"
        for name, weight in part.named_parameters():
            assert not isinstance(weight, DTensor), f"{name} is computed with as a DTensor"
            assert weight.dtype is products, f"{name} is computed with in {weight.dtype}, not {products}"


def _assert_block(config: Config, plan: Plan, block: Block, *, layer: int) -> None:
    forward = vars(block).get("forward")
    compiled = config.compile.enable and "model" in config.compile.components
    assert hasattr(forward, "_torchdynamo_orig_callable") == compiled, f"compiled: {not compiled}, planned: {compiled}"
    if not compiled:
        assert (forward is not None) == _recomputes(plan.recompute, layer), (
            f"layer {layer} does not recompute as planned: {plan.recompute}"
        )
    attention, feed_forward = block.attention, block.feed_forward
    assert (attention.core is causal) == (plan.mesh.cp == 1), "attention does not see what context parallel plans"
    for seam in (attention.spread, feed_forward.spread):
        assert (seam is spread) == (plan.mesh.tp == 1), "heads or hidden units are not split as tensor parallel plans"


def _recomputes(recompute: Recompute, layer: int) -> bool:
    return recompute.repeats(layer) or (recompute.mode == "selective" and recompute.every is None)


def _assert_low_precision(config: Config, part: Decoder, skipped: Skipped) -> None:
    """Every linear layer multiplies in low precision where that is asked for, or is among those that were skipped."""
    dense = config.quantize.dense
    low = dense.float8.enable or dense.mx.enable
    for name, module in part.named_modules():
        if isinstance(module, Linear):
            planned = low and name not in skipped
            assert (module.product is not linear) == planned, f"{name}: low precision {not planned}, planned {planned}"
