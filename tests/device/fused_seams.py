"""Runs under torchrun, one process a GPU: blocks with fused seams against blocks with plain ones.

Rank 0 prints one JSON object: the largest relative difference of output and gradients for each case, and
the milliseconds of forward and backward of one compiled 8B block, plain and fused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from engine.model.attention import attention_kernels
from engine.model.llama import Decoder
from engine.model.rope import table
from engine.parallel.async_tp import apply_async_tensor_parallel
from engine.parallel.tensor import apply_tensor_parallel
from engine.shapes import FLAVORS, ModelShape

Run = Callable[[], dict[str, Tensor]]


def block_of(
    shape: ModelShape, mesh: DeviceMesh, *, fused: bool, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """One block over all ranks, with weights that do not depend on how it computes."""
    with torch.device("meta"):
        part = Decoder(shape, (0,), first=False, last=False, seq_len=16).to(dtype)
    apply_tensor_parallel(part, mesh, loss_parallel=True)
    if fused:
        apply_async_tensor_parallel(part, mesh)
    (block,) = part.layers.values()
    block.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    for weight in block.parameters():
        assert isinstance(weight, DTensor)
        weight._local_tensor.normal_(0.0, 0.02 if weight.ndim == 2 else 1.0, generator=generator)
    return block


def runner(shape: ModelShape, mesh: DeviceMesh, block: nn.Module, *, batch: int, tokens: int, compiled: bool) -> Run:
    """A function that goes forward and backward once; gives the output and all gradients of this rank."""
    weights = dict(block.named_parameters())
    like = next(iter(weights.values()))
    device, dtype = like.device, like.dtype
    cos, sin = table(shape, tokens, device)
    generator = torch.Generator(device).manual_seed(100 + dist.get_rank())
    size = (batch, tokens // mesh.size(), shape.dim)
    x_BSD, slope_BSD = (torch.randn(size, device=device, dtype=dtype, generator=generator) for _ in range(2))
    forward = torch.compile(block, fullgraph=True) if compiled else block

    def run() -> dict[str, Tensor]:
        own_BSD = x_BSD.detach().requires_grad_()
        block.zero_grad()
        with attention_kernels(device.type):
            out_BSD = forward(own_BSD, cos, sin)
        out_BSD.backward(slope_BSD)
        found: dict[str, Any] = {"out": out_BSD.detach(), "input": own_BSD.grad}
        return found | {name: weight.grad.to_local() for name, weight in weights.items()}  # type: ignore[union-attr]

    return run


def largest_difference(plain: dict[str, Tensor], fused: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm, the largest over all tensors and ranks."""
    assert plain.keys() == fused.keys()
    differences = [
        (fused[name].float() - tensor.float()).norm() / tensor.float().norm() for name, tensor in plain.items()
    ]
    largest = torch.stack(differences).max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


def milliseconds(run: Run) -> float:
    """Of one forward and backward, over 20 after 5 that are not counted."""
    for _ in range(5):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 20


def compare(shape: ModelShape, mesh: DeviceMesh, device: torch.device, *, tokens: int) -> dict[str, float]:
    """The difference of each case: precision, sequences, eager or compiled."""
    found: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        plain, fused = (block_of(shape, mesh, fused=fused, dtype=dtype, device=device) for fused in (False, True))
        for batch in (1, 2):
            sizes = {"batch": batch, "tokens": tokens}
            expected = runner(shape, mesh, plain, compiled=False, **sizes)()
            for compiled in (False, True):
                case = f"{dtype} {'compiled' if compiled else 'eager'} {batch} x {tokens}"
                found[case] = largest_difference(expected, runner(shape, mesh, fused, compiled=compiled, **sizes)())
    return found


def main() -> None:
    """Prints the figures."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    shape = FLAVORS["llama3"]["8B"]
    report: dict[str, Any] = {"differences": compare(shape, mesh, device, tokens=2048)}
    for fused in (False, True):
        block = block_of(shape, mesh, fused=fused, dtype=torch.bfloat16, device=device)
        run = runner(shape, mesh, block, batch=2, tokens=8192, compiled=True)
        report["fused_ms" if fused else "plain_ms"] = milliseconds(run)
    if dist.get_rank() == 0:
        print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
