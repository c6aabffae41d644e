"""One published run: the config that says the same in titan's keys, its hardware, and what it reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.stack import STACKS, StackName

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run. `values` are dotted keys over the defaults; what was not stated is None.

    `memory_gib` is the most of any rank: `reserved` by the allocator, or `allocated` at the peak.
    """

    id: str
    stack: StackName
    values: Mapping[str, Any]
    tokens_per_s_per_gpu: float | None = None
    memory_gib: float | None = None
    memory_is: str = "reserved"
    ran_out_of_memory: bool = False
    note: str = ""

    def plan(self) -> Plan:
        """What titan predicts for it."""
        config = with_values(Config(), dict(self.values))
        return plan(config, resolve_cluster(config.cluster), stack=STACKS[self.stack])
