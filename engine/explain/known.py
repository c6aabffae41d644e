"""What the explanation of a config builds on: its plan, and the plans of its neighbours.

Knows how a changed config is judged and planned, once each. Does not know which changes are worth a look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

from engine.config import Config
from engine.facts import Facts
from engine.hardware import Cluster
from engine.keys import with_values
from engine.planner.mesh import Mesh
from engine.planner.plan import Plan
from engine.rules import RULES, Report
from engine.settled import settled_by
from engine.sources import Loaded

Edit: TypeAlias = dict[str, Any]

_JUDGED = tuple(rule for rule in RULES if rule.needs != "plan" and "titan" in rule.stacks)
_ERRORS = frozenset(rule.id for rule in _JUDGED if rule.severity == "error")


class Known:
    """A config with its plan; `again` plans it anew with other values.

    What the planner chose stays in the neighbours as it was chosen: a difference is that of the edit alone.
    """

    def __init__(self, loaded: Loaded, report: Report, plan: Plan, cluster: Cluster | None) -> None:
        self.config: Config = loaded.config
        self.stem = loaded.stem
        self.report, self.plan = report, plan
        self._given = cluster
        chosen = {key: value for key, value in settled_by(loaded.config, plan).items() if key != "cluster.gpu"}
        self.base = with_values(loaded.config, chosen) if chosen else loaded.config
        self.facts = Facts(self.base, cluster)
        self._neighbours: dict[tuple[Any, ...], tuple[Facts, frozenset[str]]] = {}

    @property
    def cluster(self) -> Cluster:
        """The hardware of the plan."""
        return self.facts.known_cluster

    @property
    def mesh(self) -> Mesh:
        """The degrees of the plan."""
        return self.plan.mesh

    @cached_property
    def _broken(self) -> frozenset[str]:
        """Rules that the config itself breaks: its neighbours may too."""
        return _broken(self.facts)

    def again(self, edit: Mapping[str, Any], *, cluster: Cluster | None = None, strictly: bool = False) -> Plan | str:
        """The plan with an edit, or the id of the rule that refuses it; `strictly` heeds warnings too.

        `cluster` replaces the hardware; without it, that of the plan stays unless the edit is about it.
        """
        key = (*sorted((name, repr(value)) for name, value in edit.items()), cluster)
        if key not in self._neighbours:
            about_cluster = any(name.startswith("cluster.") for name in edit)
            hardware = cluster or (self._given if about_cluster else self.cluster)
            facts = Facts(with_values(self.base, dict(edit)), hardware)
            self._neighbours[key] = facts, _broken(facts) - self._broken
        facts, broken = self._neighbours[key]
        refused = broken if strictly else broken & _ERRORS
        if refused:
            return min(refused)
        return facts.plan if facts.has("plan") else "no plan"

    def smaller(self, times: int) -> Cluster:
        """The hardware with so many times fewer processes, in whole nodes where they are whole."""
        cluster, world = self.cluster, self.plan.world_size // times
        if world % cluster.gpus_per_node == 0:
            return replace(cluster, nodes=world // cluster.gpus_per_node)
        return replace(cluster, nodes=1, gpus_per_node=world)


def _broken(facts: Facts) -> frozenset[str]:
    """Ids of the rules that facts break; whether the hardware holds them only a plan tells."""
    return frozenset(rule.id for rule in _JUDGED if facts.has(rule.needs) and rule.broken(facts))


def used_bytes(plan: Plan) -> int:
    """What the fullest rank uses at its fullest moment, as much as is known of it."""
    return plan.memory.peak_bytes or plan.memory.static_bytes


def step_ms(plan: Plan) -> float | None:
    """Milliseconds of a step; None where they are not known."""
    return None if plan.time.step_s is None else 1000 * plan.time.step_s
