"""The batches of the next step, read one step early, so that ranks can tell each other whether there are any.

Knows a source and what can become of reading it: batches, their end, or an error, which is kept until all ranks know of
it. Does not know the word that carries this (status.py), nor what a step does with batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist

from engine.data.batch import Batch
from engine.first_failure import FirstFailure, PeerFailed, failure_here


class Source(Protocol):
    """Where a rank's batches come from."""

    def batches(self, step: int) -> Sequence[Batch] | None:
        """The batches of one step, one for each accumulation step; None where this rank's data ended.

        Asked for one step before that step runs. All ranks stop where the first one has no more.
        """

    @property
    def end_message(self) -> str:
        """Why there are no more, for people; asked only after `batches` said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one rank says of its next step: the text of its data's end, its failure, or nothing of either."""

    rank: int
    end_message: str | None
    failure: FirstFailure | None


class Ahead:
    """What a rank has read for its next step; `last_step` needs no batches after it."""

    def __init__(self, source: Source, *, last_step: int) -> None:
        self._source, self._last_step = source, last_step
        self._batches: Sequence[Batch] | None = ()
        self.failure: Exception | None = None

    def read(self, step: int) -> None:
        """Reads the batches of a step, if there is such a step; an error is kept, and raised by `end_together`."""
        if step > self._last_step:
            self._batches = ()
            return
        try:
            self._batches = self._source.batches(step)
        except Exception as failure:  # noqa: BLE001 - all ranks are told first, then it is raised
            self._batches, self.failure = (), failure

    def take(self) -> Sequence[Batch]:
        """What was read; only where all ranks have something."""
        assert self._batches is not None, "the step after the end of the data was begun"
        return self._batches

    @property
    def has_ended(self) -> bool:
        """Whether this rank's data gives no batches for the next step."""
        return self._batches is None

    def end_together(self, done: int) -> str:
        """Why the data ends after step `done`, for people; a collective, for a run whose ranks agreed to end there.

        Raises where reading failed on any rank: there the error itself, and PeerFailed everywhere else.
        """
        mine = Told(
            rank=dist.get_rank(),
            end_message=self._source.end_message if self.has_ended else None,
            failure=failure_here(self.failure, dist.get_rank()) if self.failure is not None else None,
        )
        ranks: list[Told] = [mine] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        first = next((told.failure for told in ranks if told.failure is not None), None)
        if first is None:
            return end_reason(ranks, done)
        if self.failure is not None and first.rank == mine.rank:
            raise self.failure
        raise PeerFailed(first) from self.failure


def end_reason(ranks: Sequence[Told], done: int) -> str:
    """Why a run ends after step `done`: the data's own words where it ended on all ranks, else on which ones."""
    ended = [told for told in ranks if told.end_message is not None]
    assert ended, "ranks agreed that data ended, and it ended on none"
    words = str(ended[0].end_message)
    if len(ended) == len(ranks):
        return words
    which = f"rank {ended[0].rank}" if len(ended) == 1 else f"ranks {', '.join(str(told.rank) for told in ended)}"
    return f"the data ended after step {done} on {which}, before that of the other ranks; {which}: {words}"
