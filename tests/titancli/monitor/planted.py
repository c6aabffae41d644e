"""Causes that make a run slow, as its ranks would tell of them: for the tests that they are named."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.titancli.monitor.recorded import Change, Parts


def everywhere(share: float, *part: str) -> Change:
    """A part that is longer on every rank, by a share of the step: `everywhere(0.2, "exposed_comm_s", "tp")`."""
    return lambda _rank, _step, parts: parts.plus(share * parts.step_s, *part)


def on(ranks: Collection[int], share: float, *part: str, waits: str = "dp_shard") -> Change:
    """A part that is longer on some ranks, for which all others wait in a collective."""

    def change(rank: int, _step: int, parts: Parts) -> Parts:
        more_s = share * parts.step_s
        return parts.plus(more_s, *part) if rank in ranks else parts.plus(more_s, "exposed_comm_s", waits)

    return change


def on_stage(stage_of: Callable[[int], int], stage: int, share: float) -> Change:
    """A pipeline stage that computes for longer; the others wait for it in their bubble."""

    def change(rank: int, _step: int, parts: Parts) -> Parts:
        return parts.plus(share * parts.step_s, "compute_s" if stage_of(rank) == stage else "bubble_s")

    return change


def at(steps: Collection[int], change: Change) -> Change:
    """A cause that is there in some steps only."""
    return lambda rank, step, parts: change(rank, step, parts) if step in steps else parts
