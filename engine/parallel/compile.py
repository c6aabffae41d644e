"""torch.compile, block by block.

Knows what is compiled: the forward of each block, which FSDP's hooks then stand around, and the
loss. Does not know FSDP; it must only come before it.
"""

from __future__ import annotations

import torch

from engine.model.llama import Decoder, Head


def compile_blocks(part: Decoder) -> None:
    """Compiles each block's forward in place: names of weights stay, and equal blocks share one compilation.

    `fullgraph`, so that a break in the graph is an error and not a slow run.
    """
    for block in part.layers.values():
        block.forward = torch.compile(block.forward, fullgraph=True)


def compile_loss(head: Head) -> None:
    """Head and loss as one compiled graph."""
    head.loss = torch.compile(head.loss, fullgraph=True)
