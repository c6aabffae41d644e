"""Memory that ran out, in words: when, how much, what the plan had said, and the nearest change that leaves room.

Knows how figures of the moment and of the plan go together. Which changes there are, and what each needs, the planner
says (rules/ways); what a rank saw is told by its events (monitor/ran_out).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import Config
from engine.facts import Facts
from engine.planner.held import GPU_ROOM
from engine.planner.memory import Memory
from engine.planner.plan import Plan
from engine.rules.fit import told
from engine.rules.pipeline import LOCAL_BATCH
from engine.rules.ways import Way, ways_within
from engine.settled import read_settled, with_settled
from engine.shrink import FIRST_STEPS
from engine.sources import load
from titancli import figures
from titancli.monitor.ran_out import Other, RanOut

_MOST_OFFERED = 3
# What this much of a card is, nobody calls crumbs.
_FRAGMENTED_SHARE = 0.1
# The CUDA context, NCCL's and cuBLAS's buffers stay below this.
_OUTSIDE_BYTES = 4 << 30
_PLANNED_AS = {
    "forward": ("forward",),
    "head and loss": ("loss", "gradient of the head"),
    "backward": (
        "gradient of the head",
        "backward of a block",
        "gradients of the weights",
        "gradient of the embedding",
    ),
    "optimizer step": ("optimizer",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """An out-of-memory of one rank beside the plan of its pipeline stage."""

    rank: int
    seen: RanOut
    memory: Memory

    @property
    def planned_bytes(self) -> int:
        """What the plan had for the moment."""
        return self._planned((self.seen.moment or "",))

    @property
    def reached_bytes(self) -> int:
        """What the plan had for the fullest moment of the step so far, the one that failed with it."""
        order = tuple(_PLANNED_AS)
        return self._planned(order[: order.index(self.seen.moment) + 1] if self.seen.moment in order else ())

    def _planned(self, moments: tuple[str, ...]) -> int:
        """The most of some moments; in the first step, before its update, there are no optimizer states."""
        names = {name for moment in moments for name in _PLANNED_AS.get(moment, ())}
        most = max((moment.bytes for moment in self.memory.moments if moment.name in names), default=None)
        if most is None:
            return self.memory.peak_bytes or self.memory.static_bytes
        is_first = self.seen.step == 1 and self.seen.moment != "optimizer step"
        return most - (self.memory.optimizer_bytes if is_first else 0)

    @property
    def beyond_bytes(self) -> int:
        """What a GPU was asked for beyond its plan: in tensors, or in what the allocator holds for them."""
        seen, asked = self.seen, self.seen.asked_bytes or 0
        in_tensors = (seen.allocated_bytes or 0) + asked - self.planned_bytes
        in_pools = (seen.reserved_bytes or 0) + asked - self.memory.needed_bytes
        return max(0, in_tensors, in_pools)

    def is_enough(self, memory: Memory, *, share: float = 1.0) -> bool:
        """Whether a plan leaves room for what this rank was short of, in a share of what it could have.

        On a GPU: all that it needs, and what the run took beyond its plan, in what the allocator had and could get. On
        the host nobody tells what the process could have had: there it is what it had come to by plan, less what it
        asked for in vain.
        """
        if self.seen.is_of_a_gpu:
            room = (self.seen.free_bytes or 0) + (self.seen.reserved_bytes or 0)
            if self.seen.limit is not None:
                room = min(room, self.seen.limit.bytes)
            return memory.needed_bytes + self.beyond_bytes <= share * room
        needed = memory.peak_bytes or memory.static_bytes
        return needed <= share * self.reached_bytes - (self.seen.asked_bytes or 1)


def shortage_of(rank: int, seen: RanOut, plan: Plan) -> Shortage:
    """What a rank was short of; the pipeline is the outermost axis of ranks."""
    stage = plan.stages[min(rank * len(plan.stages) // plan.world_size, len(plan.stages) - 1)]
    return Shortage(rank=rank, seen=seen, memory=stage.memory)


def lines(short: Shortage) -> Iterator[tuple[str, str]]:
    """What is to be said of it, a label and a text each."""
    seen, memory = short.seen, short.memory
    where = ", ".join(
        part for part in (f"step {seen.step}" if seen.step is not None else "", seen.moment or "") if part
    )
    yield "moment", f"{where or figures.NOT_KNOWN}: {_asked(seen)}"
    if held := _held(seen):
        yield "held", held
    if seen.others:
        yield "others", "; ".join(map(_other, seen.others))
    if _is_fragmented(seen):
        apart = (seen.reserved_bytes or 0) - (seen.allocated_bytes or 0)
        yield "fragments", f"{figures.memory(apart)} of what is reserved lie between tensors, in pieces too small"
    yield "planned", _planned(memory)
    if seen.step is not None and seen.step > FIRST_STEPS:
        yield "before", f"{figures.many(seen.step - 1, 'step')} had fitted: what a step takes grows, or varies"


def _asked(seen: RanOut) -> str:
    asked = "memory" if seen.asked_bytes is None else figures.memory(seen.asked_bytes)
    limit = seen.limit
    if limit is not None and limit.bytes - limit.used_bytes < max(seen.asked_bytes or 0, limit.bytes // 2):
        return f"asked for {asked} more than {limit.name} = {figures.memory(limit.bytes)} leaves"
    if seen.free_bytes is None:
        return f"asked for {asked}"
    of = "card" if seen.is_of_a_gpu else "machine"
    free = f"{figures.memory(seen.free_bytes)} of the {of}'s {figures.memory(seen.total_bytes)} were free"
    return f"asked for {asked}, and {free}"


def _held(seen: RanOut) -> str:
    if not seen.is_of_a_gpu:
        return "" if seen.host_rss_bytes is None else f"{figures.memory(seen.host_rss_bytes)} by the process afterwards"
    parts = [
        f"{figures.memory(seen.allocated_bytes)} in tensors",
        f"{figures.memory(seen.reserved_bytes)} reserved by the allocator",
    ]
    outside = _outside_bytes(seen)
    if outside is not None:
        of_whom = "CUDA, NCCL"
        if outside > _OUTSIDE_BYTES and not seen.others:
            of_whom += " and surely other processes: see nvidia-smi"
        parts.append(f"{figures.memory(outside)} outside of it ({of_whom})")
    return ", ".join(parts)


def _outside_bytes(seen: RanOut) -> int | None:
    """What of the card is neither free, nor the allocator's, nor known to be another process's."""
    if None in (seen.total_bytes, seen.free_bytes, seen.reserved_bytes):
        return None
    others = sum(other.bytes or 0 for other in seen.others or ())
    return max(0, (seen.total_bytes or 0) - (seen.free_bytes or 0) - (seen.reserved_bytes or 0) - others)


def _other(other: Other) -> str:
    name = f" ({other.name})" if other.name else ""
    return f"process {other.pid}{name} holds {figures.memory(other.bytes)} of this card"


def _is_fragmented(seen: RanOut) -> bool:
    if None in (seen.reserved_bytes, seen.allocated_bytes, seen.total_bytes):
        return False
    apart = (seen.reserved_bytes or 0) - (seen.allocated_bytes or 0)
    return apart > _FRAGMENTED_SHARE * (seen.total_bytes or 0)


def _planned(memory: Memory) -> str:
    peak = f"{figures.memory(memory.peak_bytes)} at its fullest ({memory.moment})"
    kept = f", {figures.memory(memory.reserved_bytes)} reserved" if memory.reserved_bytes is not None else ""
    return f"{peak}{kept}, of {figures.memory(memory.capacity_bytes)}"


def way_out(short: Shortage, run: Path) -> str:
    """The fix: other processes that take what is missing, then the nearest changes after which the plan leaves room."""
    found = ways(short, run)
    beyond = short.beyond_bytes if short.seen.is_of_a_gpu else 0
    told_ways = [_told(short, run, way) for way in found[:_MOST_OFFERED]]
    if told_ways and beyond:
        told_ways[-1] += f", each planned with the {figures.memory(beyond)} that the run took beyond its plan"
    first = _without_others(short)
    words = ", or ".join([*first, *told_ways])
    if not told_ways:
        more = "a smaller model, a shorter training.seq_len, or GPUs with more memory"
        words = ", or ".join([*first, f"no change of the layout leaves enough room by plan: take {more}"])
    return words


def ways(short: Shortage, run: Path) -> tuple[Way, ...]:
    """Changes of a run's config after which its plan leaves room, in the order in which a person would try them.

    Those that leave the planner's margin too; where there are none, those that just fit.
    """
    facts = Facts(_config(run))
    ample = ways_within(facts, lambda memory: short.is_enough(memory, share=GPU_ROOM))
    return ample or ways_within(facts, short.is_enough)


def _told(short: Shortage, run: Path, way: Way) -> str:
    """A change with what it costs, and for the batch the setting that does it alone."""
    does = ""
    in_time = short.seen.step is None or short.seen.step <= FIRST_STEPS
    if LOCAL_BATCH in way.edit and in_time and _config(run).training.on_out_of_memory == "fail":
        does = " (training.on_out_of_memory = shrink does that by itself)"
    return f"{told(Facts(_config(run)), way)}{does}"


def _without_others(short: Shortage) -> list[str]:
    """To end other processes, where what they hold is what was missing."""
    others = short.seen.others or ()
    freed = replace(short.seen, free_bytes=(short.seen.free_bytes or 0) + sum(other.bytes or 0 for other in others))
    if not others or not replace(short, seen=freed).is_enough(short.memory):
        return []
    return [f"end process {', '.join(str(other.pid) for other in others)}, which this card is shared with"]


def _config(run: Path) -> Config:
    """A run's config, as its launch has settled it."""
    return with_settled(load(run / "config.toml", environ={}), read_settled(run)).config
