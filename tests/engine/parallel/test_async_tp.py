"""Fused seams: how many there are, and that they compute what the plain ones compute.

There are no kernels for the CPU. What torch itself takes for shapes and as the reference of its
kernels is plain collectives and products: with it the arithmetic is held against the plain
seams on real ranks here, and the kernels in tests/device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric_memory
from gloo_pool import GlooPool, RankFailedError
from synthetic import tiny
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import engine.build
from engine.model.llama import Block, Decoder
from engine.model.rope import table
from engine.parallel.async_tp import apply_async_tensor_parallel, count_fused
from engine.parallel.tensor import apply_tensor_parallel
from engine.planner.plan import plan

SHAPE = plan(tiny()).model


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Within it the CPU has torch's reference of the fused operators, which is its own for 'Meta'."""
    with torch.library._scoped_library("symm_mem", "IMPL") as library:
        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            library.impl(name, getattr(symmetric_memory, f"_{name}_fallback"), "CPU")
        yield


def split_part(*, fused: bool, tp: int, layers: int = 2) -> Decoder:
    """Blocks on the meta device, split over `tp` ranks."""
    with torch.device("meta"):
        part = Decoder(SHAPE, tuple(range(layers)), first=True, last=True, seq_len=16)
    mesh = init_device_mesh("cpu", (tp,), mesh_dim_names=("tp",))
    apply_tensor_parallel(part, mesh, loss_parallel=True)
    if fused:
        apply_async_tensor_parallel(part, mesh)
    return part


def counted(fused: bool) -> int:
    """Fused operators of a part, of whose weights none keeps a gradient of the counting."""
    part = split_part(fused=fused, tp=2)
    found = count_fused(part)
    assert all(weight.grad is None for weight in part.parameters())
    return found


@pytest.mark.world
def test_c13_a_block_has_eight_fused_operators_and_none_without_async(gloo: GlooPool) -> None:
    # Two spreads and two joins forward, and what each becomes in backward.
    assert gloo.run(2, counted, fused=True) == [2 * (4 + 4)] * 2
    assert gloo.run(2, counted, fused=False) == [0, 0]


def shapes_on_meta(batch: int) -> tuple[tuple[int, ...], tuple[int, ...], list[bool]]:
    """Shapes of a block's output and input gradient, and whether gradients of weights have the weights' shapes."""
    part = split_part(fused=True, tp=2, layers=1)
    (block,) = part.layers.values()
    cos, sin = table(SHAPE, 16, torch.device("meta"))
    x_BSD = torch.empty(batch, 8, SHAPE.dim, device="meta", requires_grad=True)
    out_BSD = block(x_BSD, cos, sin)
    out_BSD.sum().backward()
    assert x_BSD.grad is not None
    alike = [weight.grad is not None and weight.grad.shape == weight.shape for weight in block.parameters()]
    return tuple(out_BSD.shape), tuple(x_BSD.grad.shape), alike


@pytest.mark.world
@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_on_the_meta_device_are_those_of_the_plain_seams(batch: int, gloo: GlooPool) -> None:
    for out, gradient, alike in gloo.run(2, shapes_on_meta, batch=batch):
        assert out == gradient == (batch, 8, SHAPE.dim)
        assert alike == [True] * 9


def block_on_cpu(*, fused: bool, batch: int, compiled: bool) -> dict[str, torch.Tensor]:
    """Output, input gradient and weight gradients of one block with the same numbers on every call."""
    part = split_part(fused=fused, tp=2, layers=1)
    (block,) = part.layers.values()
    assert isinstance(block, Block)
    block.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    for weight in block.parameters():
        weight.data.to_local().normal_(0.0, 0.2, generator=generator)  # type: ignore[attr-defined]
    cos, sin = table(SHAPE, 16, torch.device("cpu"))
    x_BSD = torch.randn(batch, 8, SHAPE.dim, generator=generator, requires_grad=True)
    slope_BSD = torch.randn(batch, 8, SHAPE.dim, generator=generator)
    run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
    with reference_kernels(), warnings.catch_warnings():
        warnings.simplefilter("default" if compiled else "error")  # the compiler's own
        out_BSD = run(x_BSD, cos, sin)
        (out_BSD * slope_BSD).sum().backward()
    assert x_BSD.grad is not None
    gradients = {name: weight.grad.to_local() for name, weight in block.named_parameters()}  # type: ignore[union-attr]
    return {"out": out_BSD.detach(), "input": x_BSD.grad, **gradients}


def equal_on_cpu(batch: int, compiled: bool) -> list[str]:
    """What differs between fused and plain seams, beyond rounding."""
    plain = block_on_cpu(fused=False, batch=batch, compiled=False)
    fused = block_on_cpu(fused=True, batch=batch, compiled=compiled)
    assert plain.keys() == fused.keys()
    # Sums over ranks and layers in another order.
    return [name for name in plain if not torch.allclose(fused[name], plain[name], rtol=1e-5, atol=1e-5)]


@pytest.mark.world
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_fused_seams_have_the_figures_of_the_plain_ones(batch: int, compiled: bool, gloo: GlooPool) -> None:
    assert gloo.run(2, equal_on_cpu, batch=batch, compiled=compiled) == [[], []]


def kept_of_a_spread(fused: bool) -> set[int]:
    """How many elements the tensors have that a spread keeps for backward, beside its weights."""
    (block,) = split_part(fused=fused, tp=2, layers=1).layers.values()
    attention = block.attention
    x_BSD = torch.empty(1, 24, SHAPE.dim, device="meta", requires_grad=True)
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    linears = (attention.wq, attention.wk, attention.wv)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention.spread(x_BSD, linears)
    return set(kept) - {linear.weight.to_local().numel() for linear in linears}


@pytest.mark.world
def test_a_fused_spread_keeps_only_a_piece_of_the_sequence(gloo: GlooPool) -> None:
    assert gloo.run(2, kept_of_a_spread, fused=False)[0] == {48 * SHAPE.dim}
    assert gloo.run(2, kept_of_a_spread, fused=True)[0] == {24 * SHAPE.dim}


def nothing(part: Decoder, mesh: DeviceMesh) -> None:
    """Fuses nothing."""
    assert part.layers
    assert mesh.size() == 2


def build_async(fuse: bool) -> str:
    """Builds with async tensor parallel, or with what leaves the plain seams where they are."""
    config = tiny(
        2,
        training__local_batch_size=8,
        parallelism__tensor_parallel_degree=2,
        parallelism__enable_async_tensor_parallel=True,
    )
    engine.build.apply_async_tensor_parallel = apply_async_tensor_parallel if fuse else nothing
    try:
        engine.build.build(config, plan(config), torch.device("cpu"))
    finally:
        engine.build.apply_async_tensor_parallel = apply_async_tensor_parallel
    return "built"


@pytest.mark.world
def test_c13_a_build_that_fuses_nothing_stops(gloo: GlooPool) -> None:
    assert gloo.run(2, build_async, fuse=True) == ["built", "built"]
    with pytest.raises(RankFailedError, match="nothing is fused"):
        gloo.run(2, build_async, fuse=False)
