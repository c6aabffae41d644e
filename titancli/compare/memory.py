"""What a run's fullest rank took of its memory, beside what was planned for it.

Knows which measured figure goes with which planned one. Does not know how memory is planned or shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from titancli.monitor.rows import planned_memory
from titancli.monitor.run_state import RunState
from titancli.monitor.values import as_whole

Kind = Literal["allocator", "tensors", "process"]
"""What was measured: reserved by the allocator, held by tensors, or of the whole process, Python and torch with it."""
_PLANNED: Mapping[Kind, str | None] = {"allocator": "reserved_bytes", "tensors": "peak_bytes", "process": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The most that a rank took, and what was planned for it: None where the plan counts something else."""

    rank: int
    kind: Kind
    peak_bytes: int
    planned_bytes: int | None
    capacity_bytes: int | None

    @property
    def of_plan(self) -> float | None:
        """The measured over the planned; None where either is not known."""
        return self.peak_bytes / self.planned_bytes if self.planned_bytes else None


def held_by(seen: RunState, plan: Mapping[str, Any]) -> Held | None:
    """That of the rank that took most; None where none was measured."""
    peaks = [(rank.peak_bytes, -number) for number, rank in seen.ranks.items() if rank.peak_bytes is not None]
    if not peaks:
        return None
    peak_bytes, minus_rank = max(peaks)
    rank = seen.ranks[-minus_rank]
    kind: Kind = "allocator" if rank.reserved_bytes is not None else "tensors"
    if rank.reserved_bytes is None and rank.active_bytes is None:
        kind = "process"
    memory, name = planned_memory(plan, rank.rank), _PLANNED[kind]
    return Held(
        rank=rank.rank,
        kind=kind,
        peak_bytes=peak_bytes,
        planned_bytes=as_whole(memory.get(name)) if name else None,
        capacity_bytes=as_whole(memory.get("capacity_bytes")),
    )
