"""Initial weights, the same bit for bit in every layout.

Knows the distribution of each weight by its name, and how a rank fills just its own share
without communication: rows are drawn in blocks, each from a generator seeded by (seed, name,
block). Does not know layouts beyond what a DTensor says of itself. Bits are equal on one kind of
device: CPU and GPU generators differ.
"""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.model.llama import Decoder
from engine.shapes import ModelShape

# Small enough that a rank with few rows draws little in vain, large enough that drawing, not seeding, takes the time.
BLOCK_ROWS = 16
STD = 0.02
LOGITS_STD = 0.1
_INTO_RESIDUAL = (".wo.weight", ".w2.weight")


def materialise(part: Decoder, seed: int, device: torch.device) -> None:
    """Allocates a part that was built on the meta device, completes it and fills its weights."""
    part.to_empty(device=device)
    part.rebuild(device)
    initialise(part, seed)


def initialise(part: nn.Module, seed: int) -> None:
    """Fills every weight: norms with 1, all else from a normal distribution around 0."""
    assert isinstance(part, Decoder)
    with torch.no_grad():
        for name, weight in part.named_parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
                continue
            local, first_row, first_column = share_of(weight)
            if local.numel():
                _fill(
                    local,
                    name,
                    seed=seed,
                    std=deviation(name, part.shape),
                    first_row=first_row,
                    columns=weight.shape[1],
                    first_column=first_column,
                )


def deviation(name: str, shape: ModelShape) -> float:
    """Standard deviation of a matrix's initial values, by its name.

    0.02, as in GPT-2. What writes into the residual stream (wo, w2) has 1 / sqrt(2 layers) of
    that, as there, so that the stream's variance does not grow with depth. The head gives logits
    of deviation 0.1 at every width, so that a run starts at ln(vocabulary) + 0.005. An embedding
    that is not also the head has deviation 1, as in torchtitan: a norm follows it, and with
    small rows it would magnify their gradient.
    """
    if name == "output.weight":
        return LOGITS_STD / sqrt(shape.dim)
    if name == "tok_embeddings.weight" and not shape.tie_embeddings:
        return 1.0
    return STD / sqrt(2 * shape.n_layers) if name.endswith(_INTO_RESIDUAL) else STD


def share_of(weight: Tensor) -> tuple[Tensor, int, int]:
    """What this rank holds of a matrix, and the first row and column of it in the whole.

    The last axis of the mesh cuts first: FSDP cuts what tensor parallel leaves. torch's own reckoning
    takes the other order, and is wrong where a vocabulary divides over neither.
    """
    if not isinstance(weight, DTensor):
        return weight, 0, 0
    first, size, places = [0, 0], list(weight.shape), weight.device_mesh.get_coordinate()
    assert places is not None, "a rank of no mesh has no share"
    for axis, placement in reversed(list(enumerate(weight.placements))):
        if placement.is_replicate():
            continue
        dim = placement.dim  # type: ignore[attr-defined]
        piece = -(-size[dim] // weight.device_mesh.size(axis))
        start = min(piece * places[axis], size[dim])
        first[dim], size[dim] = first[dim] + start, min(piece, size[dim] - start)
    local = weight.to_local()
    assert tuple(local.shape) == tuple(size), f"a rank holds {tuple(local.shape)}, where {tuple(size)} is its share"
    return local, first[0], first[1]


def _fill(local: Tensor, name: str, *, seed: int, std: float, first_row: int, columns: int, first_column: int) -> None:
    """Draws the blocks that the local rows touch, each whole and in float32, and keeps what is local."""
    rows, width = local.shape
    generator = torch.Generator(device=local.device)
    block_RC = torch.empty(BLOCK_ROWS, columns, device=local.device, dtype=torch.float32)
    for block in range(first_row // BLOCK_ROWS, (first_row + rows - 1) // BLOCK_ROWS + 1):
        generator.manual_seed(_block_seed(seed, name, block))
        block_RC.normal_(0.0, std, generator=generator)
        start, end = max(first_row, block * BLOCK_ROWS), min(first_row + rows, (block + 1) * BLOCK_ROWS)
        drawn = block_RC[start - block * BLOCK_ROWS : end - block * BLOCK_ROWS, first_column : first_column + width]
        local[start - first_row : end - first_row].copy_(drawn)


def _block_seed(seed: int, name: str, block: int) -> int:
    """63 bits that depend on all three, the same on every machine and in every process."""
    digest = blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
