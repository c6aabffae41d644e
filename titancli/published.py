"""Runs that others published of a preset's model on as many GPUs: what they reached, and who says so.

Knows where the rows are kept (presets/published.json) and what they mean. Does not know what titan predicts of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from engine.planner.stack import StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A run. `config` are the dotted keys in which it differs from the preset; `held_gib` is the most that the
    allocator of any rank held."""

    preset: str
    config: dict[str, Any]
    engine: StackName
    tokens_per_s_per_gpu: float
    held_gib: float
    source: str

    @property
    def held_bytes(self) -> int:
        """What the allocator held."""
        return round(self.held_gib * (1 << 30))


@cache
def published_runs() -> dict[str, Published]:
    """The published run of each preset that has one."""
    rows = json.loads(files("presets").joinpath("published.json").read_text("utf-8"))
    return {row["preset"]: Published(**row) for row in rows}
