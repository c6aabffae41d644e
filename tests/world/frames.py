"""Frames for tests of how they look, without a run: each figure is given, and what is not given is not known."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from titancli.monitor.curve import Curve
from titancli.monitor.frame import Frame
from titancli.monitor.run_state import Failure, Rank, RunState
from titancli.monitor.screen.drawing import drawing
from titancli.monitor.screen.panels import panels
from titancli.monitor.screen.panels_ink import SIGNS, Ink
from titancli.monitor.screen.view import View

GIB = 1 << 30
_ROW_KEYS = (
    *("rank", "host", "gpu", "used_bytes", "capacity_bytes", "planned_bytes", "sm_pct", "link_pct", "idle_pct", "idle"),
    *("exposed_comm_by_axis", "uuid", "tensor_pct", "dram_pct", "pcie_pct", "network_pct", "power_w", "cpu_pct"),
    *("reasons", "stage", "own_s", "behind_pct", "profiled_step", "is_live"),
)
TIME_S: Mapping[str, Any] = {
    "measured": {
        "step": 2.0,
        "compute": 1.2,
        "data": 0.02,
        "host": 0.1,
        "bubble": 0.3,
        "other": 0.08,
        "exposed_comm": {"pp": 0.0, "dp_shard": 0.1, "tp": 0.2},
    },
    "planned": {
        "step": 1.6,
        "compute": 1.2,
        "data": None,
        "host": None,
        "bubble": 0.25,
        "other": None,
        "exposed_comm": {"pp": 0.01, "dp_shard": 0.1, "tp": 0.04},
    },
}


def row(rank: int, **fields: Any) -> dict[str, Any]:
    """A row of the table of ranks."""
    return {**dict.fromkeys(_ROW_KEYS), "rank": rank, "reasons": {}, "is_live": False, **fields}


def busy(rank: int, **fields: Any) -> dict[str, Any]:
    """A row of a rank on a GPU, of which all is known."""
    known = {
        "host": f"node-{rank // 8:03d}",
        "gpu": "NVIDIA H200",
        "uuid": f"GPU-{rank}",
        "stage": rank // 4,
        "used_bytes": 64 * GIB,
        "capacity_bytes": 80 * GIB,
        "planned_bytes": 62 * GIB,
        "sm_pct": 90.0,
        "tensor_pct": 50.0,
        "dram_pct": 60.0,
        "link_pct": 20.0,
        "pcie_pct": 2.0,
        "network_pct": 4.0,
        "power_w": 650.0,
        "cpu_pct": 102.0,
        "own_s": 1.4,
        "behind_pct": 0.0,
        "idle_pct": 40.0,
        "idle": {"data": 1.0, "host": 5.0, "exposed_comm": 15.0, "bubble": 15.0, "other": 4.0},
        "exposed_comm_by_axis": {"dp_shard": 5.0, "tp": 10.0},
    }
    return row(rank, **(known | fields))


def frame(
    rows: Sequence[dict[str, Any]] = (), *, seen: Mapping[str, Any] | None = None, heard: bool = True, **fields: Any
) -> Frame:
    """A frame of a run called demo; `seen` are fields of its RunState, and `heard` whether its ranks spoke."""
    ranks = {each["rank"]: Rank(rank=each["rank"]) for each in rows} if heard else {}
    known = {"time": 1000.0, "run": "demo", "state": "running", "steps": 5000, "eta_s": None, "alerts": ()}
    return Frame(seen=RunState(**({"ranks": ranks} | dict(seen or {}))), ranks=tuple(rows), **(known | fields))


def training(rows: Sequence[dict[str, Any]], **fields: Any) -> Frame:
    """A frame of a run that trains on GPUs, beside its plan."""
    seen = {
        "step": 1234,
        "loss": 2.3456,
        "grad_norm": 0.9,
        "lr": 3e-4,
        "step_s": 2.0,
        "last_time": 997.0,
        "tokens_per_s_per_gpu": 10_000.0,
        "mfu_pct": 41.2,
        "curve": Curve(tuple(range(1, 90)), tuple(2.0 + 6.0 / n for n in range(1, 90))),
        "plan": {"gpu": "h200", "tokens_per_s_per_gpu": 12_500.0, "mfu_pct": 51.5, "time": {"step_s": 1.6}},
        "ranks": {each["rank"]: Rank(rank=each["rank"]) for each in rows},
    }
    known = {"eta_s": 7532.0, "time_s": TIME_S, "slowest": {"rank": 5, "behind_pct": 7.2, "of": "stage 1"}}
    return frame(rows, seen=seen | fields.pop("seen", {}), **(known | fields))


def failed(rank: int) -> Rank:
    """A rank that failed."""
    return Rank(rank=rank, failure=Failure(rank=rank, host=None, type="ValueError", message="boom"))


def screen(
    shown: Frame, columns: int, rows: int, *, view: View | None = None, ink: Ink = SIGNS, has_keys: bool = True
) -> list[str]:
    """The lines of a whole screen, each as wide as it is."""
    return lines_of(
        drawing(shown, columns, rows, view=view or View(), ink=ink, has_keys=has_keys).picture, columns, rows
    )


def lines_of(picture: Any, columns: int, rows: int, encoding: str = "utf-8") -> list[str]:
    """What rich makes of a picture, without colours."""
    from rich.console import Console

    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=columns, height=rows, color_system=None, highlight=False, markup=False)
    console.print(picture, end="")
    stream.flush()
    stream.seek(0)
    return stream.read().removesuffix("\n").split("\n")


def drawn(shown: Frame, width: int = 80) -> str:
    """The panels without a screen around them."""
    return "\n".join(lines_of(panels(shown, width=width), width, 1000))
