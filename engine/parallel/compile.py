"""torch.compile, block by block.

Knows what is compiled: the forward of each block, which FSDP's hooks then stand around, and the
loss. Does not know FSDP; it must only come before it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.model.llama import Decoder, Head
from engine.model.loss import PiecewiseLoss


def compile_blocks(part: Decoder) -> None:
    """Compiles each block's forward in place: names of weights stay, and equal blocks share one compilation.

    `fullgraph`, so that a break in the graph is an error and not a slow run.
    """
    for block in part.layers.values():
        block.forward = torch.compile(block.forward, fullgraph=True)


def compile_loss(head: Head) -> None:
    """Head and loss as one compiled graph, or that of one piece of the sequence."""
    loss = head.loss
    if isinstance(loss, PiecewiseLoss):
        head.loss = replace(loss, piece=torch.compile(loss.piece, fullgraph=True))
    else:
        head.loss = torch.compile(loss, fullgraph=True)
