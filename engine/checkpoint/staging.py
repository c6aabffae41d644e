"""A copy of a rank's tensors in the memory of the host, from which a checkpoint is written while training goes on.

Knows how a copy is made without waiting for the device, and from when on the originals may change again. Does not know
what is done with it (background.py).

On a GPU with pinned memory the copies are queued on a stream of their own: they run beside the next forward and
backward, which read weights and write none, and only the next update waits for them, on the device. Pageable memory
takes the copy through a buffer of the driver, so the CPU stands still for it; so it does where the originals are in the
host's memory already. Memory is allocated at the first copy and kept for all later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Staging:
    """Memory for one copy of a table of tensors; the next one overwrites it."""

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        self._device = device
        self._pinned = pinned and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._pinned else None  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event() if self._pinned else None  # type: ignore[no-untyped-call]
        self._copies: dict[str, Tensor] = {}

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they are now, on the CPU, of equal placements; whole once `wait` is over.

        Until `hold_updates` was called for it, no original may be changed.
        """
        if self._copies.keys() != tensors.keys():
            self._copies = {name: self._room_for(tensor) for name, tensor in tensors.items()}
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                _local(self._copies[name]).copy_(_local(tensor), non_blocking=self._pinned)
            if self._copied is not None:
                self._copied.record()
        return dict(self._copies)

    def hold_updates(self) -> None:
        """Has all that is queued on the device from here on wait for the copies; the CPU goes on."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait(self) -> None:
        """Waits on the CPU, in whichever thread, until the copies are whole."""
        if self._device.type == "cuda":
            # A thread begins on GPU 0, and would take memory there in every rank.
            torch.cuda.set_device(self._device)
        if self._copied is not None:
            self._copied.synchronize()

    def _room_for(self, tensor: Tensor) -> Tensor:
        local = _local(tensor)
        room = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=self._pinned and local.numel() > 0)
        if not isinstance(tensor, DTensor):
            return room
        # The public way moves the memory back to the device of the mesh; tried with torch 2.11 and 2.13.
        twin: Tensor = DTensor(room, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return twin


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
