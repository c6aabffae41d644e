"""Runs as if they had been: a folder with config, plan and the events of 1 to 512 ranks, written in a moment.

Knows what a healthy run of a preset writes: the plan's own seconds, with the small differences that GPUs have. A cause
is planted by changing what one rank writes of one step. The figures are the same each time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.keys import with_values
from engine.planner.plan import Plan
from engine.rules import check
from engine.sources import load, to_toml

BEGAN = 1_800_000_000.0
"""When every recorded run began, in Unix seconds."""
FIRST_STEP_S = 30.0
_NO_RATES_S = 1.0
_OPEN_SHARE = {"pp": 0.004, "dp_replicate": 0.01, "dp_shard": 0.02, "cp": 0.01, "tp": 0.015}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one step of one rank, as a `step` event with a profile has them."""

    compute_s: float
    data_s: float
    host_s: float
    bubble_s: float
    other_s: float
    exposed_comm_s: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """Their sum."""
        rest = self.compute_s + self.data_s + self.host_s + self.bubble_s + self.other_s
        return rest + sum(self.exposed_comm_s.values())

    def plus(self, seconds: float, *names: str) -> Parts:
        """The same with seconds more in a part: `plus(0.2, "host_s")`, `plus(0.2, "exposed_comm_s", "tp")`."""
        name, *axis = names
        if axis:
            waits = dict(self.exposed_comm_s)
            waits[axis[0]] = waits.get(axis[0], 0.0) + seconds
            return replace(self, exposed_comm_s=waits)
        return replace(self, **{name: getattr(self, name) + seconds})


Change = Callable[[int, int, Parts], Parts]
"""What a planted cause makes of the parts of a rank and a step."""
Fields = Callable[[int, int], Mapping[str, Any]]
"""Fields of one kind of event that are other than usual, by rank and step."""


def _as_it_is(_rank: int, _step: int, parts: Parts) -> Parts:
    return parts


def _as_usual(_rank: int, _step: int) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run of a config; `change` plants a cause, the other functions change fields of events."""

    config: Config
    plan: Plan
    steps: int = 200
    log_freq: int = 10
    breakdown_freq: int = 50
    resumed_from: int | None = None
    began: float = BEGAN
    gpus_per_node: int = 8
    change: Change = _as_it_is
    of_step: Fields = _as_usual
    of_memory: Fields = _as_usual
    of_gpu: Fields = _as_usual
    ends: Mapping[str, Any] | None = field(default_factory=lambda: {"reason": "done", "exit_code": 0})

    @property
    def reported(self) -> list[int]:
        """Steps that are reported."""
        first = (self.resumed_from or 0) + 1
        whole = [step for step in range(first, self.steps + 1) if step % self.log_freq == 0 or step == self.steps]
        return [first, *(step for step in whole if step != first)]

    def profiled(self, step: int) -> bool:
        """Whether a report comes with a profile."""
        return bool(self.breakdown_freq) and step % self.breakdown_freq == 0

    def events(self, rank: int) -> Iterator[dict[str, Any]]:
        """The events of a rank, in their order."""
        now = self.began
        head = {"v": 1, "rank": rank}
        yield head | {"time": now, "kind": "phase", "name": "build", "state": "begin", "seconds": None}
        yield head | {"time": now + 5.0, "kind": "run_started", **self._started(rank)}
        yield head | {"time": now + 5.0, "kind": "phase", "name": "train", "state": "begin", "seconds": None}
        now += FIRST_STEP_S
        before = self.resumed_from or 0
        for step in self.reported:
            parts = self.change(rank, step, healthy(self.plan, rank, step))
            now += parts.step_s * (step - before)
            before = step
            told = head | {"time": now}
            yield told | {"kind": "memory", **self._memory(rank), **self.of_memory(rank, step)}
            if self.plan.gpu != "cpu":
                yield told | {"kind": "gpu", **_gpu(self.plan, rank), **self.of_gpu(rank, step)}
            yield told | {"kind": "step", **self._step(step, parts), **self.of_step(rank, step)}
        if self.ends is not None:
            yield head | {"time": now + 1.0, "kind": "run_ended", "first_failure": None, **self.ends}

    def every(self) -> list[dict[str, Any]]:
        """The events of all ranks, one rank after another."""
        return [event for rank in range(self.plan.world_size) for event in self.events(rank)]

    @property
    def ended(self) -> float:
        """When rank 0 wrote last."""
        return float([*self.events(0)][-1]["time"])

    def _started(self, rank: int) -> dict[str, Any]:
        gpu = None if self.plan.gpu == "cpu" else {"name": f"NVIDIA {self.plan.gpu.upper()}", "uuid": uuid_of(rank)}
        return {
            "world_size": self.plan.world_size,
            "host": f"node-{rank // self.gpus_per_node:03d}",
            "pid": 4_000_000 + rank,
            "local_parameters": self.plan.stages[0].local_parameters,
            "gpu": gpu,
            "versions": {},
            "resumed_from": None if self.resumed_from is None else {"step": self.resumed_from},
            "plan": json.loads(json.dumps(self.plan.to_json())) if rank == 0 else None,
        }

    def _memory(self, rank: int) -> dict[str, Any]:
        if self.plan.gpu == "cpu":
            names = ("active_bytes", "reserved_bytes", "peak_active_bytes", "peak_reserved_bytes")
            return dict.fromkeys((*names, "alloc_retries", "ooms")) | {
                "host_rss_bytes": 1 << 29,
                "cpu_pct": 100.0,
            }
        memory = self.plan.stages[stage_of(self.plan, rank)].memory
        peak = int(memory.peak_bytes or 0)
        return {
            "active_bytes": int(0.8 * peak),
            "reserved_bytes": int(memory.reserved_bytes or peak),
            "peak_active_bytes": peak,
            "peak_reserved_bytes": int(memory.reserved_bytes or peak),
            "alloc_retries": 0,
            "ooms": 0,
            "host_rss_bytes": 3 << 30,
            "cpu_pct": 104.0,
        }

    def _step(self, step: int, parts: Parts) -> dict[str, Any]:
        tokens = self.plan.tokens_per_step
        first = step == (self.resumed_from or 0) + 1
        profiled = self.profiled(step) and not first
        breakdown: dict[str, Any] = {
            "data_s": parts.data_s,
            "compute_s": parts.compute_s if profiled else None,
            "exposed_comm_s": dict(parts.exposed_comm_s) if profiled else None,
            "bubble_s": parts.bubble_s if profiled else None,
            "host_s": parts.host_s if profiled else None,
            "other_s": parts.other_s if profiled else parts.step_s - parts.data_s,
            "profiled_s": parts.step_s if profiled else None,
        }
        return {
            "step": step,
            "loss": round(8.0 / (1 + step / 50) ** 0.5 + 0.02 * _noise(0, step), 5),
            "grad_norm": round(1.0 + 0.2 * _noise(1, step), 5),
            "lr": 3e-4,
            "tokens": tokens,
            "slots": tokens,
            "step_s": FIRST_STEP_S if first else parts.step_s,
            "tokens_per_s_per_gpu": None if first else tokens / parts.step_s / self.plan.world_size,
            "mfu_pct": None if first or self.plan.mfu_pct is None else self.plan.mfu_pct,
            "breakdown": breakdown,
        }

    def write(self, folder: Path, name: str = "recorded", *, ranks: Sequence[int] | None = None) -> Path:
        """Writes `<folder>/runs/<name>`, of all ranks or of some; returns the run folder."""
        run = folder / "runs" / name
        (run / "events").mkdir(parents=True, exist_ok=True)
        (run / "config.toml").write_text(to_toml(self.config), "utf-8")
        (run / "plan.json").write_text(json.dumps(self.plan.to_json()) + "\n", "utf-8")
        for rank in range(self.plan.world_size) if ranks is None else ranks:
            lines = [json.dumps(event, separators=(",", ":")) for event in self.events(rank)]
            (run / "events" / f"rank-{rank:05d}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        return run


def recorded(preset: str = "fsdp-8b", values: Mapping[str, Any] | None = None, **changes: Any) -> Recorded:
    """A run of a preset with dotted keys of its own; `changes` are fields of `Recorded`.

    `3d-405b` has 512 ranks, `fsdp-8b` eight, `quickstart` two processes; no rule may be broken.
    """
    loaded = load(preset=preset, environ={})
    config = with_values(loaded.config, dict(values or {}))
    found = check(replace(loaded, config=config))
    assert found.plan is not None, found.findings
    nodes = config.cluster.nodes
    each = found.plan.world_size // nodes
    return Recorded(config=config, plan=found.plan, **({"gpus_per_node": each} | changes))


def healthy(plan: Plan, rank: int, step: int) -> Parts:
    """What a rank of a run without trouble takes: as planned, ranks within half a percent of each other."""
    time = plan.time
    axes = [axis for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp") if getattr(plan.mesh, axis) > 1]
    if time.step_s is None or time.compute_s is None or time.bubble_s is None:
        compute_s, bubble_s = 0.94 * _NO_RATES_S, 0.0
        waits = {axis: _NO_RATES_S * _OPEN_SHARE[axis] for axis in axes}
    else:
        compute_s, bubble_s = time.compute_s, time.bubble_s
        waits = {axis: (time.per_axis or {}).get(axis, 0.0) for axis in axes}
    # A rank that is quicker waits for the others where all meet.
    quicker_s = compute_s * 0.005 * (0.5 + 0.5 * _noise(rank, step // 50))
    meets = next((axis for axis in ("dp_shard", "dp_replicate", "tp", "cp") if axis in waits), None)
    if meets is not None:
        waits[meets] += quicker_s
    return Parts(
        compute_s=compute_s - (quicker_s if meets is not None else 0.0),
        data_s=0.001 * compute_s,
        host_s=0.003 * compute_s,
        bubble_s=bubble_s,
        other_s=0.005 * compute_s,
        exposed_comm_s=waits,
    )


def stage_of(plan: Plan, rank: int) -> int:
    """The pipeline rank of a rank: the outermost axis."""
    return rank * plan.mesh.pp // plan.world_size


def uuid_of(rank: int) -> str:
    """The GPU of a rank, as NVML spells it."""
    return f"GPU-00000000-0000-0000-0000-{rank:012d}"


def _gpu(plan: Plan, rank: int) -> dict[str, Any]:
    return {
        "uuid": uuid_of(rank),
        "sm_pct": 92.0 + _noise(3, rank),
        "tensor_pct": 55.0 + _noise(4, rank),
        "dram_pct": 61.0 + _noise(5, rank),
        "nvlink_rx_bytes_per_s": 9.1e10,
        "nvlink_tx_bytes_per_s": 9.0e10,
        "pcie_rx_bytes_per_s": 1.2e9,
        "pcie_tx_bytes_per_s": 0.9e9,
        "network_rx_bytes_per_s": 2.0e9,
        "network_tx_bytes_per_s": 2.1e9,
        "power_w": 655.0 + 10 * _noise(6, rank),
        "used_bytes": int(plan.memory.reserved_bytes or plan.memory.peak_bytes or 0) + (1 << 29),
        "capacity_bytes": plan.memory.capacity_bytes,
        "reasons": {},
        "source": "gpm",
        "peaks": {
            "nvlink_bytes_per_s": 450e9,
            "pcie_bytes_per_s": 64e9,
            "network_bytes_per_s": 50e9,
            "hbm_bytes_per_s": 3.35e12,
        },
    }


def _noise(one: int, other: int) -> float:
    """From -1 to 1, the same for the same two numbers."""
    return (((one * 2_654_435_761 + other * 40_503 + 12_345) ^ (other << 7)) % 2001) / 1000 - 1.0
