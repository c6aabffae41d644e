"""The batch and the recomputation that a config leaves to the planner.

Knows which batches a layout takes, which of them are tried, and which of those that fit is taken. Does not
know bytes or seconds: it is given functions that say whether a choice leaves enough room, and how fast it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

from engine.config import Config, ScheduleName
from engine.legal import divisors
from engine.planner.recompute import Recompute, recompute_choices
from engine.planner.schedule import ZERO_BUBBLE, takes_microbatches

# A bubble of (pp - 1) / (m + pp - 1) is below a ninth of the step by then; more microbatches only make it longer.
MICROBATCHES_A_RANK = 8
# More sequences at once than anybody wants, and quick to search.
MOST_SEQUENCES = 65_536
# Llama 3 405B ended with 16 Mi tokens a step (arXiv 2407.21783, section 3.4.1); larger steps teach no more, only later.
MOST_TOKENS_A_STEP = 1 << 24
# Where no speed is known, on a CPU that was not measured: products of so many rows leave no core idle.
ENOUGH_TOKENS = 2048
# A larger batch has to gain a percent: below that it is in the model's noise, and delays every update.
WORTH = 1.01
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
Speed = Callable[[Batch, Recompute], float | None]
"""Tokens a second of one GPU; None where nothing is known of it."""
_Choice = TypeVar("_Choice")


def resolve(
    config: Config, *, data_ranks: int, stage_count: int, suits: Suits, speed: Speed
) -> tuple[Batch, Recompute]:
    """Batch and recomputation as numbers, for every mix of given and `auto`.

    The fastest that suits; of those within a percent of it the smallest batch, and then the least
    recomputation. Where no speed is known: the least recomputation that suits, and a batch that keeps the
    hardware busy. Where nothing suits: the smallest batch, the most recomputation.
    """
    p = config.parallelism
    splits_backward = p.pipeline_parallel_degree > 1 and p.pipeline_parallel_schedule in ZERO_BUBBLE
    modes = recompute_choices(config.activation_checkpoint, splits_backward=splits_backward)
    batches = _Batches(config, data_ranks=data_ranks, stage_count=stage_count)
    given = config.training.local_batch_size
    if given != "auto":
        least = Batch(local=given, microbatch=batches.microbatch(given))
        choices = [(least, mode) for mode in modes if suits(least, mode)] if len(modes) > 1 else []
    else:
        least = batches.of(batches.smallest)
        is_known = speed(least, modes[-1]) is not None
        choices = [
            (batch, mode)
            for mode in modes
            if suits(least, mode)
            for batch in batches.rungs(mode, suits, is_known=is_known)
        ]
        if is_known:
            choices.sort(key=lambda choice: choice[0].local)
    return economical(choices, lambda choice: speed(*choice)) or (least, modes[-1])


def economical(choices: Sequence[_Choice], speed: Callable[[_Choice], float | None]) -> _Choice | None:
    """The first choice within a percent of the fastest, where they come from the cheapest on.

    The first of all where no speed is known, and None where there is no choice.
    """
    if len(choices) < 2:
        return choices[0] if choices else None
    rates = [speed(choice) or 0.0 for choice in choices]
    return next(choice for choice, rate in zip(choices, rates, strict=True) if rate * WORTH >= max(rates))


def batches_of(config: Config, *, data_ranks: int, stage_count: int) -> list[Batch]:
    """The batches of a layout that are tried, from the smallest on, whether they fit or not."""
    batches = _Batches(config, data_ranks=data_ranks, stage_count=stage_count)
    return [batches.of(count) for count in batches.ladder()]


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
        self.unit_tokens = max(1, self.unit * config.training.seq_len // config.parallelism.context_parallel_degree)
        whole = config.training.global_batch_size
        self.wanted = None if whole == -1 else whole // data_ranks
        self.limit = self._limit(MOST_TOKENS_A_STEP // (config.training.seq_len * data_ranks))
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

    def ladder(self) -> list[int]:
        """Counts that are taken, each at most twice the one before it where the global batch leaves the choice."""
        if self.wanted is not None:
            steps = divisors(self.wanted // self.unit) if self.wanted >= self.unit else []
        elif self.pp > 1:
            steps = [rounds * self.pp for rounds in (1, 2, 4, MICROBATCHES_A_RANK)]
        else:
            steps = sorted(times << power for power in range(self.limit.bit_length()) for times in (1, 3))
        rungs = {count for count in steps if self.smallest < count <= self.limit and self.takes(count)}
        return [self.smallest, *sorted(rungs)]

    def rungs(self, mode: Recompute, suits: Suits, *, is_known: bool) -> list[Batch]:
        """The batches to choose from: those of the ladder that suit and the largest that does, or one that is enough.

        `is_known` says whether they can be told apart by their speed.
        """
        largest = self.largest(lambda count: suits(self.of(count), mode))
        if not is_known:
            enough = largest if self.pp > 1 else min(largest, max(1, ENOUGH_TOKENS // self.unit_tokens))
            return [self.of(next((count for count in range(enough, 0, -1) if self.takes(count)), self.smallest))]
        counts = [count for count in self.ladder() if count < largest]
        return [self.of(count) for count in (*counts, largest)]

    def largest(self, suits: Callable[[int], bool]) -> int:
        """The largest count that is taken and suits, else the smallest; a larger batch never needs less memory."""
        low, high = self.smallest, self.limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if suits(middle) else (low, middle - 1)
        return next((count for count in range(low, self.smallest, -1) if self.takes(count)), self.smallest)

    def _limit(self, sequences_a_step: int) -> int:
        if self.wanted is not None:
            return min(self.wanted, MOST_SEQUENCES) // self.unit
        most = min(sequences_a_step, MOST_SEQUENCES) // self.unit
        return max(1, min(most, MICROBATCHES_A_RANK * self.pp) if self.pp > 1 else most)

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
