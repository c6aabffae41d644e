"""What a step leaves for its report, on its way to the CPU.

Knows how figures get there without making the device wait: a GPU goes on with the next step while they are copied. Does
not know what is written about them (reporting.py).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Figures:
    """Loss, norm of the gradient and flag of one step, queued behind it; all ranks make them at once."""

    def __init__(self, *, step: int, tokens: int, loss: Tensor, norm: Tensor, bad: Tensor, counts_loss: bool) -> None:
        """`loss` is this rank's sum, which is added up over ranks where it counts; `tokens` are those of all ranks."""
        self.step, self.tokens = step, tokens
        total = loss.clone() if counts_loss else torch.zeros_like(loss)
        dist.all_reduce(total)
        on_device = torch.stack((total, norm.double(), bad.double()))
        self._host, self._copied = on_device, None
        if loss.is_cuda:
            self._host = torch.empty(3, dtype=torch.float64, pin_memory=True)
            self._host.copy_(on_device, non_blocking=True)
            copied = self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()

    def have_arrived(self) -> bool:
        """Whether reading them makes nobody wait."""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def read(self) -> tuple[float, float, bool]:
        """Sum of the loss over all tokens, norm, and whether either is not finite; waits until they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        loss_sum, norm, bad = self._host.tolist()
        return loss_sum, norm, bool(bad)
