"""Alerts W210, W211, W214 and W217: memory that is nearly full, over its plan, fragmented, or that ran out.

Knows what ranks, cards and the plan say of memory. Does not know which changes save some (rules/ways, by plan).
"""

from __future__ import annotations

from collections.abc import Iterator

from titancli import figures
from titancli.monitor.alerts.advice import Advice, Edit
from titancli.monitor.alerts.alert import Alert, Case, Look, Way

_ALMOST_FULL = 0.95
# The plan's peak was off by 14 % at most in 20 runs that were held out of it.
_BEYOND_PLAN = 1.15
# A peak that is over by less than this of a card is no matter.
_BEYOND_CARD = 0.02
# As long ago as this it was something that passed.
_RECENT_S, _RECENT_STEPS = 600.0, 50


def _nearly_full(look: Look) -> Iterator[Case]:
    full = [
        row
        for row in look.rows
        if row["used_bytes"] and row["used_bytes"] > _ALMOST_FULL * (row["capacity_bytes"] or 1e99)
    ]
    if full:
        fullest = max(full, key=lambda row: row["used_bytes"] / row["capacity_bytes"])
        planned = fullest["planned_bytes"] if look.is_on_gpus else None
        yield Case(
            words={
                "ranks": _ranks([row["rank"] for row in full], "uses", "use up to"),
                "used": figures.memory(fullest["used_bytes"]),
                "capacity": figures.memory(fullest["capacity_bytes"]),
                "planned": "" if planned is None else f" (planned: {figures.memory(planned)})",
            },
            about=frozenset(row["rank"] for row in full),
        )


def _over_plan(look: Look) -> Iterator[Case]:
    """Peaks of tensors over those of the plan; a process on a CPU has much in it that no plan counts."""
    over = {}
    for row in look.rows:
        peak, planned, capacity = row["peak_bytes"], row["planned_bytes"], row["capacity_bytes"]
        if peak and planned and capacity and peak > max(_BEYOND_PLAN * planned, planned + _BEYOND_CARD * capacity):
            over[row["rank"]] = peak, planned
    if over and look.is_on_gpus:
        worst = max(over, key=lambda number: over[number][0] / over[number][1])
        peak, planned = over[worst]
        yield Case(
            words={
                "ranks": _ranks(sorted(over), "has held", "have held up to"),
                "peak": figures.memory(peak),
                "planned": figures.memory(planned),
                "more": 100 * (peak / planned - 1),
            },
            about=frozenset(over),
        )


def _asked_again(look: Look) -> Iterator[Case]:
    patience_s = max(_RECENT_S, _RECENT_STEPS * (look.seen.step_s or 0.0))
    newest = look.seen.last_time or look.now
    again = {
        number: rank.alloc_retries or 0
        for number, rank in look.seen.ranks.items()
        if rank.retried_time is not None and newest - rank.retried_time < patience_s
    }
    if again:
        words = {"ranks": _ranks(sorted(again), "has", "have"), "times": f"{max(again.values()):,} times"}
        yield Case(words=words, about=frozenset(again))


def _ran_out(look: Look) -> Iterator[Case]:
    short = {rank.rank: rank.ooms for rank in look.seen.ranks.values() if rank.ooms}
    if short:
        yield Case(
            words={"ranks": _ranks(sorted(short), "ran", "ran"), "times": figures.many(max(short.values()), "time")},
            about=frozenset(short),
        )


def _ranks(numbers: list[int], one: str, many: str) -> str:
    """`rank 3 uses`, or `ranks 0-511 use up to`."""
    return f"rank {numbers[0]} {one}" if len(numbers) == 1 else f"ranks {figures.ranges(tuple(numbers))} {many}"


def _less_memory(look: Look, advice: Advice) -> Iterator[Edit]:
    """The least changes of each kind after which what is used beyond the plan has room too."""
    from engine.planner.held import GPU_ROOM
    from engine.planner.memory import Memory
    from engine.rules.ways import ways_within

    needed, capacity = advice.plan.memory.needed_bytes, advice.plan.memory.capacity_bytes
    used = max((row["used_bytes"] for row in look.rows if row["used_bytes"]), default=needed)
    beyond = max(0, used - needed) if look.is_on_gpus else 0

    def enough(memory: Memory) -> bool:
        return memory.needed_bytes + beyond <= GPU_ROOM * capacity and memory.needed_bytes < needed

    for way in ways_within(advice.facts, enough):
        if not way.adds_gpus and way.keeps_precision:
            yield dict(way.edit)


_SMALLER = (
    Way(
        told="more recomputation, a smaller batch at once, or the loss in pieces, whichever is enough by plan",
        edits=_less_memory,
        least_gain_pct=None,
    ),
)

MEMORY_ALERTS = (
    Alert(
        id="W210",
        key="activation_checkpoint.mode",
        cases=_nearly_full,
        message="{ranks} {used} of {capacity}{planned}: close to out of memory",
        fix='recompute more (activation_checkpoint.mode = "full") or take a smaller training.local_batch_size',
        ways=_SMALLER,
        why="what is left of a card is for buffers that come late, such as those of a first checkpoint or a longer "
        "message: 5 % is little for them",
    ),
    Alert(
        id="W211",
        key="activation_checkpoint.mode",
        cases=_asked_again,
        message="{ranks} had to give memory back to the driver and ask again, {times} so far",
        fix='recompute more (activation_checkpoint.mode = "full") or take a smaller training.local_batch_size',
        ways=_SMALLER,
        why="each time the GPU stands still until all that was freed is given back to the driver and taken again",
    ),
    Alert(
        id="W214",
        key="training.local_batch_size",
        cases=_over_plan,
        message="{ranks} {peak} at the peak, {more:.0f} % more than planned ({planned})",
        fix="see whether it goes on growing, as where something keeps tensors of earlier steps; with room on the card "
        "it does no harm",
        why="plans of memory have been off by 14 % at most in runs that were held out: beyond that something is other "
        "than assumed",
    ),
    Alert(
        id="W217",
        key="activation_checkpoint.mode",
        cases=_ran_out,
        message="{ranks} out of memory {times}",
        fix='recompute more (activation_checkpoint.mode = "full") or take a smaller training.local_batch_size',
        ways=_SMALLER,
        why="an allocation failed, and was caught or ended the rank",
    ),
)
