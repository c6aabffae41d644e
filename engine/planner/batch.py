"""The batch and the recomputation that a config leaves to the planner.

Knows which batches a layout takes and in which order they are tried. Does not know bytes: it is
given a function that says whether a choice leaves enough room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from engine.config import Config, ScheduleName
from engine.planner.recompute import Recompute, recompute_choices
from engine.planner.schedule import ZERO_BUBBLE, takes_microbatches

# A bubble of (pp - 1) / (m + pp - 1) is below a ninth of the step by then; more microbatches only make it longer.
MICROBATCHES_A_RANK = 8
# More sequences at once than anybody wants, and quick to search.
MOST_SEQUENCES = 65_536
# Low precision multiplies blocks of so many tokens; the weight gradient sums over tokens.
_FLOAT8_BLOCK, _MX_BLOCK = 16, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences of one data rank in an accumulation step, and how many of them go through the model at once."""

    local: int
    microbatch: int

    @property
    def microbatches(self) -> int:
        """Pipeline microbatches of an accumulation step; 1 without a pipeline."""
        return self.local // self.microbatch


Suits = Callable[[Batch, Recompute], bool]
"""Whether a choice leaves enough room on every rank."""


def resolve(config: Config, *, data_ranks: int, stage_count: int, suits: Suits) -> tuple[Batch, Recompute]:
    """Batch and recomputation as numbers, for every mix of given and `auto`.

    Recomputation first, for the batch that is given or for the smallest: it costs up to a third more
    arithmetic in every step, while a batch beyond some thousand tokens a GPU gains little. Then
    the largest batch that fits beside it. Where nothing has room: the smallest batch, the most recomputation.
    """
    p = config.parallelism
    splits_backward = p.pipeline_parallel_degree > 1 and p.pipeline_parallel_schedule in ZERO_BUBBLE
    choices = recompute_choices(config.activation_checkpoint, splits_backward=splits_backward)
    given = config.training.local_batch_size
    batches = _Batches(config, data_ranks=data_ranks, stage_count=stage_count)
    if given == "auto":
        batch = batches.of(batches.smallest)
    else:
        batch = Batch(local=given, microbatch=batches.microbatch(given))
    recompute = next((choice for choice in choices if suits(batch, choice)), choices[-1])
    if given == "auto":
        batch = batches.of(batches.largest(lambda count: suits(batches.of(count), recompute)))
    return batch, recompute


def smallest_batch(config: Config, stage_count: int) -> int:
    """The fewest sequences that a layout takes, whatever the global batch."""
    batches = _Batches(config, data_ranks=1, stage_count=stage_count)
    return batches.unit * batches.first_scheduled()


class _Batches:
    """The batches that a layout takes, as multiples of `unit` sequences."""

    def __init__(self, config: Config, *, data_ranks: int, stage_count: int) -> None:
        p = config.parallelism
        self.pp = p.pipeline_parallel_degree
        self.schedule: ScheduleName = p.pipeline_parallel_schedule
        self.stages = stage_count
        self.unit = p.pipeline_parallel_microbatch_size if self.pp > 1 else _unit(config)
        whole = config.training.global_batch_size
        self.wanted = None if whole == -1 else whole // data_ranks
        self.limit = self._limit()
        self.smallest = next(filter(self.takes, range(1, self.limit + 1)), self.first_scheduled())
        if whole % data_ranks and self.wanted is not None:
            # Rule T201 has the word: no batch divides what data ranks cannot share.
            self.limit = self.smallest = self.first_scheduled()

    def of(self, count: int) -> Batch:
        """`count` units."""
        return Batch(local=count * self.unit, microbatch=self.microbatch(count * self.unit))

    def microbatch(self, local: int) -> int:
        """Sequences that go through the model at once."""
        return self.unit if self.pp > 1 else local

    def takes(self, count: int) -> bool:
        """Whether the schedule takes so many units, and the global batch, where it is given, so many sequences."""
        if self.wanted is not None and self.wanted % (count * self.unit):
            return False
        return self._scheduled(count)

    def largest(self, suits: Callable[[int], bool]) -> int:
        """The largest count that is taken and suits, else the smallest; a larger batch never needs less memory."""
        low, high = self.smallest, self.limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if suits(middle) else (low, middle - 1)
        return next((count for count in range(low, self.smallest, -1) if self.takes(count)), self.smallest)

    def _limit(self) -> int:
        if self.wanted is not None:
            return min(self.wanted, MOST_SEQUENCES) // self.unit
        return MICROBATCHES_A_RANK * self.pp if self.pp > 1 else MOST_SEQUENCES // self.unit

    def first_scheduled(self) -> int:
        """The smallest that the schedule takes, whatever the global batch."""
        count = 1
        while not self._scheduled(count):
            count += 1
        return count

    def _scheduled(self, count: int) -> bool:
        return self.pp == 1 or takes_microbatches(self.schedule, microbatches=count, pp=self.pp, stages=self.stages)


def _unit(config: Config) -> int:
    """The fewest sequences whose tokens are whole blocks of the low precision in force."""
    dense = config.quantize.dense
    block = _FLOAT8_BLOCK if dense.float8.enable else _MX_BLOCK if dense.mx.enable else 1
    if dense.float8.enable and dense.float8.recipe_name == "rowwise_with_gw_hp":
        block = 1
    return block // gcd(block, config.training.seq_len // config.parallelism.context_parallel_degree)
