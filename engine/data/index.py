"""The one global index: which sample of which corpus every step, data rank and row of a run reads.

Knows that every sample of a run has a number, and that everything derives from it: the step and the data rank that read
it, its epoch, its place in the corpus. Does not know tokens or documents (stream.py), nor what is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data.mixture import ONE_CORPUS, Mixture
from engine.data.shuffle import shuffled


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run is: after `step` steps, `samples` samples have been read, over all data ranks."""

    step: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalIndex:
    """Which samples each step and each data rank read, from the number of the sample in the run alone.

    Step k reads the global_batch numbers after those of step k - 1. Within a step, number
    (accumulation * data_ranks + data_rank) * local_batch + row goes to that row: accumulation
    steps follow each other, and in each of them the ranks' rows do. So the samples of a step depend
    only on the global batch, never on the layout. `start` is where an earlier run stopped, which
    may have had another global batch.

    `sizes`: samples of one epoch of each corpus; `mixture`: how the numbers are dealt to them. Every corpus has epochs
    and an order of its own, that of its place in the mixture.
    """

    sizes: tuple[int, ...]
    mixture: Mixture = ONE_CORPUS
    data_ranks: int
    local_batch: int
    accumulation_steps: int
    repeat: bool
    shuffle_seed: int | None
    start: Position = Position()

    @property
    def global_batch(self) -> int:
        """Samples of one step over all data ranks."""
        return self.data_ranks * self.local_batch * self.accumulation_steps

    @property
    def last_step(self) -> int | None:
        """The last step with a whole global batch before the first corpus runs out; None where all repeat for ever."""
        if self.repeat:
            return None
        return self.start.step + max(0, self.numbers - self.start.samples) // self.global_batch

    @property
    def numbers(self) -> int:
        """Numbers until the first corpus runs out for the first time."""
        return self.mixture.last_number(self.sizes)

    def position(self, step: int) -> Position:
        """Where the run stands after `step`."""
        assert step >= self.start.step, "a run goes on from where it starts, never back"
        return Position(step=step, samples=self.start.samples + (step - self.start.step) * self.global_batch)

    def sample_numbers(self, step: int, data_rank: int) -> NDArray[np.int64]:
        """Numbers in the run of the samples that one rank reads in one step, (accumulation, row)."""
        assert 0 <= data_rank < self.data_ranks, f"there is no data rank {data_rank} among {self.data_ranks}"
        accumulation = np.arange(self.accumulation_steps, dtype=np.int64)[:, None]
        row = np.arange(self.local_batch, dtype=np.int64)
        first = self.position(step - 1).samples
        return first + (accumulation * self.data_ranks + data_rank) * self.local_batch + row

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Corpus of each number of the run, and the sample of that corpus in the order of its epoch (same shapes)."""
        corpora, ordinals = self.mixture.split(numbers)
        samples = np.empty_like(ordinals)
        for corpus, size in enumerate(self.sizes):
            here = corpora == corpus
            epochs, positions = np.divmod(ordinals[here], size)
            if self.shuffle_seed is not None:
                seed = self.shuffle_seed if corpus == 0 else f"{self.shuffle_seed} {corpus}"
                positions = shuffled(positions, epochs=epochs, size=size, seed=seed)
            samples[here] = positions
        return corpora, samples
