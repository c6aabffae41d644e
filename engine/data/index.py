"""The one global index: which sample of the corpus every step, data rank and row of a run reads.

Knows that every sample of a run has a number, and that everything derives from it: the step and the data rank that read
it, its epoch, its place in the corpus. Does not know tokens or documents (stream.py), nor what is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """

    samples_per_epoch: int
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
        """The last step for which a whole global batch is left; None where the corpus repeats for ever."""
        if self.repeat:
            return None
        return self.start.step + max(0, self.samples_per_epoch - self.start.samples) // self.global_batch

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

    def corpus_indices(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample of the corpus behind each number of the run, in the order of the number's epoch."""
        epochs, positions = np.divmod(numbers, self.samples_per_epoch)
        if self.shuffle_seed is None:
            return positions
        return shuffled(positions, epochs=epochs, size=self.samples_per_epoch, seed=self.shuffle_seed)
