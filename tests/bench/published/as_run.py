"""Runs of this project that were measured while FSDP held the weights of a lone GPU too, on a mesh of one rank.

What they took is no evidence for what one GPU takes since (parallel/whole): no copies of FSDP, other gradients, another
update. Planned as they ran they still are for what both have in common: kernels, activations, logits, low precision,
and FSDP's buffers. Runs of one GPU that are measured without FSDP belong in a file of their own, planned by TITAN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.stack import TITAN
from tests.bench.published.case import Case

ON_FSDP = replace(TITAN, one_rank="fsdp")


def plan_on_fsdp(values: Mapping[str, Any]) -> Plan:
    """What is planned for a config whose weights FSDP holds, on one rank too."""
    config = with_values(Config(), dict(values))
    return plan(config, resolve_cluster(config.cluster), stack=ON_FSDP)


def plan_as_run(case: Case) -> Plan:
    """What is planned for a run of a table of this project's, or of another's, as it ran."""
    return plan_on_fsdp(case.values) if case.stack == "titan" else case.plan()
