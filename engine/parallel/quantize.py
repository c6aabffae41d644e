"""Matrix products in float8 and MXFP8, through torchao.

Knows which linear layers can take low precision, what their product becomes, and how FSDP gathers
weights in float8. Does not know how weights are cut, only that tensor parallel will leave a rank one
`tp`-th of them. Private and prototype names of torchao stand here, tried on 0.17 and 0.18.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from logging import Logger, LogRecord, getLogger
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.config import Float8, Mx
from engine.model.linear import Linear, Product
from engine.model.llama import Decoder
from engine.shapes import Parameter, part_parameters

Skipped: TypeAlias = dict[str, str]
"""Linear layers that stay in high precision, by full name, with the reason."""

# Kernels take whole blocks of this many values along every width.
FLOAT8_BLOCK, MX_BLOCK = 16, 32


def apply_float8(part: Decoder, config: Float8, *, tp: int) -> Skipped:
    """Multiplies in float8 in every linear layer that can; before tensor parallel of `tp` ranks, compile and FSDP."""
    return _apply(part, config, product=_float8_product(config.recipe_name, config.emulate), block=FLOAT8_BLOCK, tp=tp)


def apply_mx(part: Decoder, config: Mx, *, tp: int) -> Skipped:
    """Multiplies in MXFP8 in every linear layer that can; before tensor parallel of `tp` ranks, compile and FSDP."""
    emulate = config.emulate or config.recipe_name == "mxfp8_emulated"
    return _apply(part, config, product=_mx_product(emulate), block=MX_BLOCK, tp=tp)


def _apply(part: Decoder, config: Float8 | Mx, *, product: Product, block: int, tp: int) -> Skipped:
    weights = part_parameters(part.shape, tuple(map(int, part.layers)), first=False, last=part.output is not None)
    skipped: Skipped = {}
    for name, linear in _linears(part):
        reason = _filtered(name, config.filter_fqns) or _misfit(weights[f"{name}.weight"], block=block, tp=tp)
        if reason is None:
            linear.product = product
        else:
            skipped[name] = reason
    return skipped


def _linears(part: Decoder) -> Iterator[tuple[str, Linear]]:
    return ((name, module) for name, module in part.named_modules() if isinstance(module, Linear))


def _filtered(name: str, parts: Iterable[str]) -> str | None:
    return next((f"filter_fqns has {part}" for part in parts if part in name), None)


def _misfit(weight: Parameter, *, block: int, tp: int) -> str | None:
    """Why a weight's widths, as tensor parallel leaves them, are no whole blocks; None where they are."""
    n, k = weight.shape
    step_n, step_k = (block * tp if weight.split == split else block for split in ("rows", "columns"))
    if n % step_n == 0 and k % step_k == 0:
        return None
    return f"{k} x {n}" + (f" over {tp} tensor ranks" if tp > 1 else "") + f": no multiples of {block}"


# ── products ──


@contextmanager
def _quiet() -> Iterator[None]:
    """Drops what torchao says while it is imported, and nothing else.

    That its libraries for GPUs do not load where there is none, and (0.18) that torch needs no help any
    more with its enumerations.
    """

    def is_news(record: LogRecord) -> bool:
        text = record.getMessage()
        library = text.startswith("Failed to load") and not torch.cuda.is_available()
        return not (library or "is an Enum subclass and is now natively supported" in text)

    loggers: list[Logger] = [getLogger("torchao"), getLogger("torch.utils._pytree")]
    for logger in loggers:
        logger.addFilter(is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_news)


@cache
def _float8_config(recipe: str, emulate: bool) -> tuple[Any, Any]:
    """torchao's config of a recipe, and that of its three products: output, gradients of input and of weight."""
    with _quiet():
        from torchao.float8.config import Float8LinearConfig
        from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    kernels = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
    return config, LinearMMConfig(*(ScaledMMConfig(emulate, kernel.use_fast_accum, False, False) for kernel in kernels))


@cache
def _float8_product(recipe: str, emulate: bool) -> Product:
    """One function for all layers, so that equal blocks share one compilation."""
    config, kernels = _float8_config(recipe, emulate)
    with _quiet():
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

        # triton-lang/triton#11111: compiled casts to float8 may store garbage. 0.18 works around it where it swaps
        # layers, which is not done here.
        if find_spec("torchao.float8._inductor_patch") is not None:
            from torchao.float8._inductor_patch import _patch_inductor_min_max_codegen

            _patch_inductor_min_max_codegen()

    def product(x: Tensor, weight_NK: Tensor) -> Tensor:
        return cast(Tensor, matmul_with_hp_or_float8_args.apply(x, weight_NK.t(), kernels, config))

    return product


@cache
def _mx_product(emulate: bool) -> Product:
    with _quiet():
        if find_spec("torchao.prototype.moe_training.mxfp8_linear") is not None:
            from torchao.prototype.moe_training.mxfp8_linear import mx_mm
        else:  # 0.17
            from torchao.prototype.mx_formats.mx_linear import mx_mm
        from torchao.prototype.mx_formats import config as mx
        from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
    e4m3 = torch.float8_e4m3fn
    how = (
        (KernelPreference.EMULATED, mx.MXFP8Dim0CastKernelChoice.TORCH, mx.MXFP8Dim1CastKernelChoice.TORCH)
        if emulate
        else (KernelPreference.AUTO, mx.MXFP8Dim0CastKernelChoice.TRITON, mx.MXFP8Dim1CastKernelChoice.CUDA)
    )
    rounding, high_precision_weight_gradient = mx.ScaleCalculationMode.RCEIL, False

    def product(x: Tensor, weight_NK: Tensor) -> Tensor:
        out = mx_mm.apply(
            x.contiguous(), weight_NK, e4m3, e4m3, e4m3, MX_BLOCK, *how, rounding, high_precision_weight_gradient
        )
        return _ContiguousGradient.apply(out)  # type: ignore[no-any-return, no-untyped-call]

    return product


class _ContiguousGradient(torch.autograd.Function):
    """Leaves the output as it is; torchao casts only contiguous gradients (0.17)."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:  # noqa: ARG004
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.contiguous()


# ── weights that FSDP gathers in float8 ──


def gather_in_float8(part: Decoder, config: Float8, *, shards: int) -> Skipped:
    """Lets FSDP over `shards` ranks gather float8 weights in float8; after tensor parallel, before FSDP.

    A weight keeps its name, its precision and its optimizer state: a shard is cast when it is
    sent. Gives the float8 layers whose weights are gathered in high precision. `after_update` belongs to it.
    """
    product = _float8_product(config.recipe_name, config.emulate)
    skipped: Skipped = {}
    for name, linear in _linears(part):
        if linear.product is not product:
            continue
        rows = _local(linear.weight).shape[0]
        if linear is part.output and part.tied:
            skipped[name] = "its weight is the embedding's too"
        elif rows % shards:
            skipped[name] = f"{rows} rows do not divide over {shards} ranks"
        else:
            linear.weight = nn.Parameter(_cast_when_gathered(linear.weight, config))
    return skipped


def _cast_when_gathered(weight: Tensor, config: Float8) -> Tensor:
    with _quiet():
        from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
    settings, kernels = _float8_config(config.recipe_name, config.emulate)
    wrapped = WeightWithDynamicFloat8CastTensor(
        _local(weight.detach()), kernels, settings.cast_config_weight.target_dtype
    )
    if not isinstance(weight, DTensor):
        return cast(Tensor, wrapped)
    return DTensor.from_local(
        wrapped,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def after_update(parts: Iterable[Decoder]) -> None:
    """Computes the scale of every weight that is gathered in float8, for the steps until weights change again.

    Whoever changes weights calls it: the optimizer, a load. Without it every gather would ask all ranks
    for the largest element first. One small collective for each axis over which weights are sharded.
    """
    by_mesh: dict[tuple[dist.ProcessGroup, ...], list[Any]] = {}
    for part in parts:
        for _, linear in _linears(part):
            weight = linear.weight
            if isinstance(weight, DTensor) and hasattr(weight.to_local(), "_precomputed_scale"):
                # What FSDP cuts after tensor parallel is a _StridedShard, which says that it is no shard.
                groups = tuple(
                    weight.device_mesh.get_group(axis)
                    for axis, where in enumerate(weight.placements)
                    if not where.is_replicate()
                )
                by_mesh.setdefault(groups, []).append(weight._local_tensor)
    with torch.no_grad():
        for groups, shards in by_mesh.items():
            _set_scales(shards, groups)


def plain(weight: Tensor) -> Tensor:
    """A weight, or a state of it, without torchao's class around what a rank holds: the same memory."""
    local = _local(weight.detach())
    held = getattr(local, "_tensor", None)
    if held is None:
        return weight.detach()
    if not isinstance(weight, DTensor):
        return cast(Tensor, held)
    return DTensor.from_local(
        held, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


def _set_scales(shards: list[Any], groups: tuple[dist.ProcessGroup, ...]) -> None:
    """`shards` are of torchao's class: `_tensor` is what a rank holds, `_dtype` what it is cast to."""
    from torchao.float8.float8_utils import amax_to_scale

    largest = torch.stack(torch._foreach_norm([shard._tensor for shard in shards], float("inf")))
    for group in groups:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    scales = amax_to_scale(largest, shards[0]._dtype)
    for shard, scale in zip(shards, scales.unbind(), strict=True):
        shard._precomputed_scale = scale


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
