"""The rows of a look at a run: one for each rank, with what it has, what it was planned to have, and what it does.

Knows how events, plan and meters of this machine go together; what is read here and now goes before what was written.
Does not read meters (live) nor judge (diagnosis, alerts). What is unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.meters.peaks import explained, peaks_of, percents
from titancli.monitor.diagnosis import Diagnosis, Layout
from titancli.monitor.run_state import Rank, RunState
from titancli.monitor.values import as_number, as_whole

Row = dict[str, Any]
_FIGURES = ("sm_pct", "tensor_pct", "power_w")
_RATES = tuple(f"{link}_{way}_bytes_per_s" for link in ("nvlink", "pcie", "network") for way in ("rx", "tx"))


def rows_of(
    seen: RunState, plan: Mapping[str, Any], diagnosis: Diagnosis, live: Mapping[int, Mapping[str, Any]]
) -> tuple[Row, ...]:
    """A row for each rank that spoke, and for those that should have."""
    layout, kind = Layout.of(plan), plan.get("gpu")
    peaks = peaks_of(kind if isinstance(kind, str) else None)
    found = []
    for number in _numbers(seen, plan):
        rank = seen.ranks.get(number, Rank(rank=number))
        row = _row(rank, planned_memory(plan, number), peaks, stage=layout.stage(number))
        found.append(_live(row | {"behind_pct": diagnosis.behind_pct.get(number)}, live.get(number)))
    return tuple(found)


def planned_memory(plan: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """The plan's memory of the pipeline stage that a rank belongs to (pipeline is the outermost axis)."""
    stages, world_size = plan.get("stages"), plan.get("world_size")
    if not isinstance(stages, list) or not stages or not isinstance(world_size, int) or not 0 <= rank < world_size:
        return {}
    stage = stages[rank * len(stages) // world_size]
    memory = stage.get("memory") if isinstance(stage, dict) else None
    return memory if isinstance(memory, dict) else {}


def _numbers(seen: RunState, plan: Mapping[str, Any]) -> list[int]:
    size = seen.world_size if seen.world_size is not None else plan.get("world_size")
    expected = range(size) if isinstance(size, int) and 0 < size <= 1 << 20 else range(0)
    return sorted({*expected, *seen.ranks})


def _row(rank: Rank, memory: Mapping[str, Any], table: Mapping[str, object], *, stage: int) -> Row:
    told = rank.meters
    figures = {name: as_number(told.get(name)) for name in (*_FIGURES, *_RATES, "dram_pct")}
    given = told.get("reasons")
    reasons = {str(name): str(why) for name, why in given.items()} if isinstance(given, Mapping) else {}
    peaks = told.get("peaks")
    use = percents(figures, peaks if isinstance(peaks, Mapping) else table)
    why = explained(use, reasons) if told else {}
    profile = rank.profile
    return {
        "rank": rank.rank,
        "host": rank.host,
        "gpu": rank.gpu,
        "used_bytes": rank.used_bytes,
        "capacity_bytes": as_whole(memory.get("capacity_bytes")) or as_whole(told.get("capacity_bytes")),
        "planned_bytes": as_whole(memory.get("peak_bytes")),
        "peak_bytes": rank.peak_active_bytes,
        "planned_reserved_bytes": as_whole(memory.get("reserved_bytes")),
        "sm_pct": figures["sm_pct"],
        "link_pct": use["link_pct"],
        "idle_pct": None if profile is None else profile.idle_pct,
        "idle": None if profile is None else profile.idle,
        "exposed_comm_by_axis": None if profile is None else profile.exposed_pct,
        "uuid": rank.uuid,
        "tensor_pct": figures["tensor_pct"],
        "dram_pct": use["dram_pct"],
        "pcie_pct": use["pcie_pct"],
        "network_pct": use["network_pct"],
        "power_w": figures["power_w"],
        "cpu_pct": rank.cpu_pct,
        "reasons": why | {name: reasons[name] for name in _FIGURES if figures[name] is None and name in reasons},
        "stage": stage,
        "own_s": None if profile is None else profile.own_s,
        "behind_pct": None,
        "profiled_step": None if profile is None else profile.step,
        "is_live": False,
    }


def _live(row: Row, now: Mapping[str, Any] | None) -> Row:
    """The row with what was read on this machine; a meter that has a figure there has no reason left."""
    if not now:
        return row
    reasons = {name: why for name, why in row["reasons"].items() if name not in now}
    return row | dict(now) | {"reasons": reasons | dict(now.get("reasons") or {})}
