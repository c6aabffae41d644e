"""The order of a corpus that is read while it arrives: shuffled within windows of its samples.

Knows windows. Does not know how much of the corpus is there (spool.py), nor tokens. A window is read once all of it is
there, or the corpus has ended in it; so its order is the same whenever it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data.shuffle import shuffled

WINDOW = 1 << 10
"""Samples of one window."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The `number`-th window of an epoch."""

    epoch: int
    number: int

    @property
    def first(self) -> int:
        """Its first sample, in the order of the corpus."""
        return self.number * WINDOW


def in_windows(
    numbers: NDArray[np.int64], *, size: int | None, seed: int | None
) -> tuple[list[Window], NDArray[np.int64], NDArray[np.int64]]:
    """The windows that numbers of the run lie in; which of these each does, and its sample counted from the window's.

    `size`: samples of an epoch, None while that is not known: the numbers lie in whole windows of the first then.
    `seed`: None reads them in the order of the corpus. Both arrays are of the shape of `numbers`.
    """
    epochs, positions = np.divmod(numbers, size) if size is not None else (np.zeros_like(numbers), numbers)
    keys = np.stack([epochs, positions // WINDOW], axis=-1).reshape(-1, 2)
    unique, which = np.unique(keys, axis=0, return_inverse=True)
    windows = [Window(epoch, number) for epoch, number in unique.tolist()]
    which = which.reshape(numbers.shape)
    samples = positions % WINDOW
    for place, window in enumerate(windows if seed is not None else ()):
        here = which == place
        held = WINDOW if size is None else min(WINDOW, size - window.first)
        key = np.full_like(samples[here], window.number)
        samples[here] = shuffled(samples[here], epochs=key, size=held, seed=f"{seed} windows {window.epoch}")
    return windows, which, samples


def samples_for(last_number: int) -> int:
    """Samples that have to be there before a number of the first epoch is read: whole windows."""
    return (last_number // WINDOW + 1) * WINDOW
