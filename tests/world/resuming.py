"""Runs with checkpoints in real processes: one that is cut short, and one that goes on from what it saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parity import KEYS
from synthetic import Rows, tiny
from torch.distributed.tensor import DTensor

import engine.loop
from engine.build import Built
from engine.events import event_file, read_new
from engine.loop import fit
from engine.parallel.quantize import plain
from engine.planner.plan import plan

KEPT = {"checkpoint__enable": True, "checkpoint__interval": 100}


def train(
    arguments: dict[str, Any], folder: str, ends_after: int | None = None, *, reads: bool = False
) -> dict[str, Any]:
    """A fit of one rank in the run folder `folder`; its data ends after a step, and so does the run.

    With `reads` it trains on the corpus of the arguments instead.

    Gives losses by step, this rank's part of weights and optimizer states at the end, and its last events.
    """
    config = tiny(**(KEPT | arguments))
    resolved = plan(config)
    rank = _data_rank(arguments) if dist.is_initialized() else 0
    found: dict[str, Any] = {}
    before = engine.loop.build

    def building(*given: Any) -> Built:
        found["built"] = before(*given)
        return found["built"]

    engine.loop.build = building
    try:
        outcome = fit(
            config,
            resolved,
            run=Path(folder),
            source=None if reads else Rows(config, resolved, data_rank=rank, ends_after=ends_after),
        )
    finally:
        engine.loop.build = before
    built = found.get("built")
    return {
        "reason": outcome.reason,
        "last_step": outcome.last_step,
        "losses": {step["step"]: step["loss"] for step in outcome.steps},
        "held": None if built is None else held(built),
        "events": read_new(event_file(Path(folder), dist.get_rank() if dist.is_initialized() else 0))[0],
    }


def held(built: Built) -> dict[str, torch.Tensor]:
    """All that this rank holds, weights and states, each its own part."""
    parts = {name: _local(weight) for name, weight in built.weights.items()}
    for name, weight in built.weights.items():
        parts |= {f"{name}/{state}": _local(value) for state, value in built.optimizer.state[weight].items()}
    return {name: part.detach().cpu().clone() for name, part in parts.items()}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = plain(tensor)
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _data_rank(arguments: dict[str, Any]) -> int:
    """As `parity.data_rank`, of arguments that leave axes out."""
    tp, cp, pp = (int(arguments.get(KEYS[name], 1)) for name in ("tp", "cp", "pp"))
    return dist.get_rank() // (tp * cp) % (dist.get_world_size() // (tp * cp * pp))
