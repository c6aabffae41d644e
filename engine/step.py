"""The arithmetic of one optimizer step: gradients of all its batches, then one update.

Knows that every loss is divided by one denominator and that a bad gradient changes nothing. Does not know which step
it is, nor what is written about it (training.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.build import Built
from engine.data.batch import Batch
from engine.optim import GradientNorm, clip_divisor, gradient_norm, update
from engine.parallel.shard import set_last_accumulation


def forward_backward(built: Built, batches: Sequence[Batch], denominator: Tensor) -> Tensor:
    """Gradients of one optimizer step; returns this rank's sum of losses, float64, not divided.

    Every loss sum is divided by the one denominator before backward, so that all that follows,
    over accumulation steps and ranks, is sums.
    """
    loss_sum = torch.zeros((), dtype=torch.float64, device=built.device)
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        tokens_BS, labels_BS = _to_device(batch.tokens_BS, built.device), _to_device(batch.labels_BS, built.device)
        positions_BS = None if batch.positions_BS is None else _to_device(batch.positions_BS, built.device)
        if built.pipeline is not None:
            loss_sum += built.pipeline.step(
                tokens_BS, labels_BS, positions_BS, denominator=denominator, last_accumulation=last
            )
        else:
            (part,) = built.parts
            if built.whole is None:
                set_last_accumulation(part, last)
            loss = part(tokens_BS, labels_BS, positions_BS)
            (loss / denominator).backward()
            loss_sum += loss.detach()
    return loss_sum


@torch.no_grad()
def forward_losses(built: Built, batches: Sequence[Batch]) -> Tensor:
    """This rank's sum of losses, float64, of batches that nothing is learnt from."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=built.device)
    for batch in batches:
        tokens_BS, labels_BS = _to_device(batch.tokens_BS, built.device), _to_device(batch.labels_BS, built.device)
        positions_BS = None if batch.positions_BS is None else _to_device(batch.positions_BS, built.device)
        if built.pipeline is not None:
            loss_sum += built.pipeline.losses(tokens_BS, labels_BS, positions_BS)
        else:
            (part,) = built.parts
            loss_sum += part(tokens_BS, labels_BS, positions_BS)
    return loss_sum


def update_weights(built: Built, *, loss: Tensor, lr: float, max_norm: float) -> tuple[GradientNorm, Tensor]:
    """Clips, updates, drops the gradients; gives their norm, and 1.0 where it or a loss is not finite.

    Then nothing was changed, on any rank; `loss` is this rank's.
    """
    pipeline = None if built.pipeline is None else built.world.axes["pp"].get_group()
    gradients = built.gradients
    norm = gradient_norm(gradients, pipeline=pipeline, loss=loss)
    bad = norm.total.isfinite().logical_not().float()
    update(
        built.optimizer,
        gradients,
        copies=built.copies,
        lr=lr,
        divisor=clip_divisor(norm.total, max_norm) if max_norm > 0 else None,
        bad=bad,
    )
    built.scales_changed()
    built.zero_grad()
    return norm, bad


def _to_device(array: Any, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
