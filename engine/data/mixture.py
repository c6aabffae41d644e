"""Which corpus of a mixture each sample of a run comes from, from the sample's number alone.

Knows weights and how they become quotas. Does not know what a corpus holds (stream.py), nor which rank reads a sample
(index.py).

The numbers of a run come in blocks of BLOCK. In every block each corpus has the same quota, its weight's share of BLOCK
by largest remainder (A. Hamilton's method), at least 1; the order inside a block is a permutation that seed and block
give. So corpus c has given block * quota_c samples before a block, and nothing of a run's past is needed to go on from
a number. What a corpus gets is off its weight by less than one sample a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from engine.data.shuffle import shuffled

BLOCK = 1 << 13
"""Numbers of one block: weights are kept to 0.012 %."""


def quotas_of(weights: Sequence[float], block: int = BLOCK) -> tuple[int, ...]:
    """Samples of each corpus in a block; they sum to `block`, and none is 0."""
    assert 0 < len(weights) <= block, f"a block of {block} holds at least one sample of each corpus"
    shares = np.asarray(weights, dtype=np.float64) / max(weights)
    exact = shares / shares.sum() * block
    quotas = np.floor(exact).astype(np.int64)
    # The largest remainders get what is left; of equal ones the first.
    quotas[np.argsort(quotas - exact, kind="stable")[: block - int(quotas.sum())]] += 1
    for number in np.flatnonzero(quotas == 0):
        quotas[number] += 1
        quotas[quotas.argmax()] -= 1
    return tuple(quotas.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The quotas of corpora in a block, and the seed of the order inside blocks."""

    quotas: tuple[int, ...]
    seed: int

    @property
    def block(self) -> int:
        """Numbers of one block."""
        return sum(self.quotas)

    def split(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Corpus of each number of the run, and which of that corpus's samples it is, from 0 (both of the same shape).

        Every sample of a corpus has one number, in an order in which they follow each other.
        """
        if len(self.quotas) == 1:
            return np.zeros_like(numbers), numbers
        flat = numbers.ravel()
        corpora, samples = np.empty_like(flat), np.empty_like(flat)
        for block in np.unique(flat // self.block).tolist():
            here = flat // self.block == block
            order, before = self._block(block)
            places = flat[here] - block * self.block
            corpora[here] = order[places]
            samples[here] = block * np.asarray(self.quotas)[order[places]] + before[places]
        return corpora.reshape(numbers.shape), samples.reshape(numbers.shape)

    def counts(self, numbers: int) -> tuple[int, ...]:
        """Samples that each corpus has given among the first `numbers` of the run."""
        if len(self.quotas) == 1:
            return (numbers,)
        blocks, left = divmod(numbers, self.block)
        order, _ = self._block(blocks)
        given = np.bincount(order[:left], minlength=len(self.quotas))
        return tuple(blocks * quota + more for quota, more in zip(self.quotas, given.tolist(), strict=True))

    def last_number(self, samples: Sequence[int]) -> int:
        """Numbers of the run until the first corpus is asked for more than its `samples`."""
        if len(self.quotas) == 1:
            return samples[0]
        blocks = min(held // quota for held, quota in zip(samples, self.quotas, strict=True))
        order, before = self._block(blocks)
        left = np.asarray(samples) - blocks * np.asarray(self.quotas)
        beyond = np.flatnonzero(before >= left[order])
        return blocks * self.block + int(beyond[0])

    def _block(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The corpus at each place of a block, and how many of that corpus's stand before the place: (BLOCK,) each."""
        return _order_of(self, block)


# Steps that follow each other lie in the same block, or in two.
@lru_cache(maxsize=4)
def _order_of(mixture: Mixture, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.repeat(np.arange(len(mixture.quotas)), mixture.quotas)
    places = np.arange(mixture.block, dtype=np.int64)
    order = order[shuffled(places, epochs=np.full_like(places, block), size=mixture.block, seed=mixture.seed)]
    before = np.empty_like(order)
    for number, quota in enumerate(mixture.quotas):
        before[order == number] = np.arange(quota)
    order.flags.writeable = before.flags.writeable = False
    return order, before


ONE_CORPUS = Mixture(quotas=(1,), seed=0)
"""No mixture: every number is a sample of the one corpus."""
