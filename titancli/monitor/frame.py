"""One look at a run: the object of `titan monitor --json`, which the panels draw too.

Knows how state, plan and config go together. Does not read events or processes. What is unknown
is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titancli import figures
from titancli.monitor.follow import ENDED, State, silence_s
from titancli.monitor.run_state import Failure, Rank, RunState

_ALMOST_FULL = 0.95
_QUIET_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is shown at one moment; `to_json` is the contract's object."""

    time: float
    run: str
    state: State
    steps: int | None
    seen: RunState
    ranks: tuple[dict[str, Any], ...]
    eta_s: float | None
    alerts: tuple[str, ...]
    time_s: Mapping[str, Any] = field(default_factory=lambda: {"measured": None, "planned": None})
    slowest: Mapping[str, Any] | None = None
    findings: tuple[dict[str, Any], ...] = ()

    @property
    def saved_s_ago(self) -> float | None:
        """Seconds since the newest checkpoint was committed; None where none was, or another run left it."""
        saved = self.seen.saved_time
        return None if saved is None else max(0.0, self.time - saved)

    def to_json(self) -> dict[str, Any]:
        """The object of `titan monitor --json`; unknown figures are null."""
        seen = self.seen
        return {
            "time": self.time,
            "run": self.run,
            "state": self.state,
            "step": seen.step,
            "steps": self.steps,
            "loss": seen.loss,
            "grad_norm": seen.grad_norm,
            "tokens_per_s_per_gpu": seen.tokens_per_s_per_gpu,
            "mfu_pct": seen.mfu_pct,
            "eta_s": self.eta_s,
            "ranks": list(self.ranks),
            "alerts": list(self.alerts),
            "starts": seen.starts,
            "saved_step": seen.saved_step,
            "saved_s_ago": self.saved_s_ago,
            "lr": seen.lr,
            "time_s": dict(self.time_s),
            "slowest": None if self.slowest is None else dict(self.slowest),
            "findings": list(self.findings),
        }


def frame(
    name: str,
    seen: RunState,
    state: State,
    *,
    failure: Failure | None,
    config: Mapping[str, Any],
    plan: Mapping[str, Any],
    now: float,
) -> Frame:
    """Puts a frame together.

    `failure` is the cause of a failed run. `config` and `plan` are the run folder's files as
    plain objects, empty where they are missing.
    """
    steps = _table(config, "training").get("steps")
    rows = tuple(_row(seen.ranks.get(number, Rank(rank=number)), plan) for number in _numbers(seen, plan))
    return Frame(
        time=now,
        run=name,
        state=state,
        steps=steps if isinstance(steps, int) else None,
        seen=seen,
        ranks=rows,
        eta_s=None if state in ENDED else eta_s(seen, steps if isinstance(steps, int) else None),
        alerts=_alerts(seen, state, failure, rows, now),
    )


def eta_s(seen: RunState, steps: int | None) -> float | None:
    """Seconds left at the median pace of the last steps; None before a second step was seen."""
    if steps is None or seen.step is None or not seen.step_seconds:
        return None
    return max(0, steps - seen.step) * statistics.median(seen.step_seconds)


def planned_memory(plan: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """The plan's memory of the pipeline stage that a rank belongs to (pipeline is the outermost axis)."""
    stages, world_size = plan.get("stages"), plan.get("world_size")
    if not isinstance(stages, list) or not stages or not isinstance(world_size, int) or not 0 <= rank < world_size:
        return {}
    stage = stages[rank * len(stages) // world_size]
    return _table(stage, "memory") if isinstance(stage, dict) else {}


def _numbers(seen: RunState, plan: Mapping[str, Any]) -> list[int]:
    """Ranks that spoke, and those that should have."""
    size = seen.world_size if seen.world_size is not None else plan.get("world_size")
    expected = range(size) if isinstance(size, int) and 0 < size <= 1 << 20 else range(0)
    return sorted({*expected, *seen.ranks})


def _row(rank: Rank, plan: Mapping[str, Any]) -> dict[str, Any]:
    memory = planned_memory(plan, rank.rank)
    return {
        "rank": rank.rank,
        "host": rank.host,
        "gpu": rank.gpu,
        "used_bytes": rank.used_bytes,
        "capacity_bytes": memory.get("capacity_bytes"),
        "planned_bytes": memory.get("peak_bytes"),
        "sm_pct": rank.sm_pct,
        "link_pct": _link_pct(rank, plan.get("gpu")),
        "idle_pct": rank.idle_pct,
        "idle": rank.idle,
        "exposed_comm_by_axis": None,
        "uuid": rank.uuid,
        "tensor_pct": None,
        "dram_pct": None,
        "pcie_pct": None,
        "network_pct": None,
        "power_w": None,
        "cpu_pct": None,
        "reasons": {},
        "stage": None,
        "own_s": None,
        "behind_pct": None,
        "is_live": False,
    }


def _link_pct(rank: Rank, gpu: object) -> float | None:
    """Use of the faster direction of NVLink, of the GPU's published peak."""
    from engine.hardware import GPUS

    known = GPUS.get(gpu) if isinstance(gpu, str) else None
    if rank.link_bytes_per_s is None or known is None or not known.nvlink_bytes_per_s:
        return None
    return 100 * rank.link_bytes_per_s / known.nvlink_bytes_per_s


def _alerts(
    seen: RunState, state: State, failure: Failure | None, rows: tuple[dict[str, Any], ...], now: float
) -> tuple[str, ...]:
    alerts: list[str] = []
    if failure is not None:
        first_line = (failure.message.splitlines() or [""])[0]
        alerts.append(f"rank {failure.rank} failed first: {failure.type}: {first_line}")
    if seen.unsaved_step is not None:
        newest = "none is kept" if seen.saved_step is None else f"the newest kept is that of step {seen.saved_step:,}"
        alerts.append(f"the checkpoint of step {seen.unsaved_step:,} could not be saved: {newest}")
    if state == "dead":
        alerts.append("its processes are gone and none of them said why; see titan logs")
    quiet_s = silence_s(seen, now)
    patience_s = max(_QUIET_S, 20 * (seen.step_s or 0.0))
    if state == "running" and quiet_s is not None and quiet_s > patience_s:
        alerts.append(f"no rank has written anything for {figures.duration(quiet_s // 60 * 60)}")
    alerts += _memory_alerts(seen, rows)
    silent = [row["rank"] for row in rows if row["rank"] not in seen.ranks]
    if silent and seen.ranks and state == "running":
        alerts.append(f"not heard of yet: rank {figures.ranges(tuple(silent))}")
    return (*alerts, *seen.warnings)


def _memory_alerts(seen: RunState, rows: tuple[dict[str, Any], ...]) -> list[str]:
    """Ranks that are close to out of memory, and those that ran out; one line each, however many they are."""
    alerts: list[str] = []
    full = [
        row for row in rows if row["used_bytes"] and row["used_bytes"] > _ALMOST_FULL * (row["capacity_bytes"] or 1e99)
    ]
    if full:
        fullest = max(full, key=lambda row: row["used_bytes"] / row["capacity_bytes"])
        use = f"{figures.memory(fullest['used_bytes'])} of {figures.memory(fullest['capacity_bytes'])}"
        alerts.append(f"{_ranks([row['rank'] for row in full], 'uses', 'use up to')} {use}: close to out of memory")
    short = {rank.rank: rank.ooms for rank in seen.ranks.values() if rank.ooms}
    if short:
        alerts.append(f"{_ranks(sorted(short), 'ran', 'ran')} out of memory {max(short.values())} times")
    return alerts


def _ranks(numbers: list[int], one: str, many: str) -> str:
    """`rank 3 uses`, or `ranks 0-511 use up to`."""
    return f"rank {numbers[0]} {one}" if len(numbers) == 1 else f"ranks {figures.ranges(tuple(numbers))} {many}"


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}
