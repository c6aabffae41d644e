"""Changes to the config of a run that its own laws and its plan let through: what an alert offers.

Knows how the config of a run folder is judged and planned anew with an edit; each edit is judged once. Does not know
which edits are worth a try (the alerts say), nor what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from titancli import figures

if TYPE_CHECKING:
    from engine.explain.known import Known
    from engine.facts import Facts
    from engine.planner.plan import Plan

Edit: TypeAlias = dict[str, Any]
# Below that a difference between two plans is in the noise of the model of time.
LEAST_GAIN_PCT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A legal edit, with the percent of speed that it gains by plan; None where no plan knows."""

    edit: Edit
    faster_pct: float | None
    more_bytes: int
    other_batch: int | None

    @property
    def words(self) -> str:
        """The edit as an instruction, with what it gains and costs."""
        from engine.reading.toml_text import toml_value

        parts = [
            f"set {key} = {toml_value(value)}" if value is not None else f"remove {key}"
            for key, value in self.edit.items()
        ]
        costs = []
        if self.faster_pct is not None and abs(self.faster_pct) >= 1.0:
            costs.append(f"{abs(self.faster_pct):.0f} % {'faster' if self.faster_pct > 0 else 'slower'} by plan")
        if abs(self.more_bytes) >= 1 << 27:
            costs.append(f"{figures.memory(abs(self.more_bytes))} a rank {'more' if self.more_bytes > 0 else 'less'}")
        if self.other_batch is not None:
            costs.append(f"a step then takes {self.other_batch:,} sequences")
        told = " and ".join(part.removeprefix("set ") if place else part for place, part in enumerate(parts))
        return told + (f" ({', '.join(costs)})" if costs else "")


class Advice:
    """The config of a run with its plan, and its neighbours."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._offers: dict[str, Offer | None] = {}

    @property
    def facts(self) -> Facts:
        """The numbers of the run's config."""
        return self.known.facts

    @property
    def plan(self) -> Plan:
        """The plan of the run's config, as it comes out here."""
        return self.known.plan

    def best(self, edits: Iterable[Edit], *, least_gain_pct: float | None = LEAST_GAIN_PCT) -> Offer | None:
        """The legal edit that gains most by plan, the first where no plan knows; None where none is worth it.

        With `least_gain_pct` None, gains are not asked for: what the edit is good for, no plan knows.
        """
        offers = [offer for edit in edits if edit and (offer := self._offer(edit)) is not None]
        if least_gain_pct is None:
            return offers[0] if offers else None
        worth = [offer for offer in offers if offer.faster_pct is None or offer.faster_pct >= least_gain_pct]
        return max(worth, key=lambda offer: offer.faster_pct or 0.0, default=None)

    def _offer(self, edit: Edit) -> Offer | None:
        key = json.dumps(edit, sort_keys=True)
        if key not in self._offers:
            self._offers[key] = self._judged(edit)
        return self._offers[key]

    def _judged(self, edit: Edit) -> Offer | None:
        from engine.explain.known import used_bytes
        from engine.rules.ways import fits, is_ample

        before, other = self.plan, self.known.again(edit, strictly=True)
        if isinstance(other, str) or not fits(other.memory) or not self._does_something(edit):
            return None
        if is_ample(before.memory) and not is_ample(other.memory):
            return None
        was, comes_to = before.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu
        batch = other.global_batch_size
        return Offer(
            edit=edit,
            faster_pct=None if not was or comes_to is None else 100 * (comes_to / was - 1),
            more_bytes=used_bytes(other) - used_bytes(before),
            other_batch=None if batch == before.global_batch_size else batch,
        )

    def _does_something(self, edit: Edit) -> bool:
        """Whether this release does what the edit asks for, and the rest of the config lets it."""
        from engine.facts import Facts
        from engine.features import settings
        from engine.keys import with_values

        facts = Facts(with_values(self.known.base, edit), self.known.cluster)
        idle = {setting.key for setting in settings(facts, ()) if setting.state != "active"}
        return not idle & edit.keys()

    @cached_property
    def accumulation(self) -> int:
        """Accumulation steps of an optimizer step."""
        return self.plan.gradient_accumulation_steps


def advice_of(config: Mapping[str, Any], plan: Mapping[str, Any]) -> Advice | None:
    """What can be changed of a run, by its config and plan as plain objects; None where these make no sound config."""
    try:
        text = json.dumps([config, {name: plan.get(name) for name in _SETTLED}, _capacity(plan)], sort_keys=True)
    except (TypeError, ValueError):
        return None
    return _advice(text)


_SETTLED = ("gpu", "world_size", "local_batch_size", "global_batch_size")


def _capacity(plan: Mapping[str, Any]) -> object:
    memory = plan.get("memory")
    return memory.get("capacity_bytes") if isinstance(memory, Mapping) else None


@lru_cache(maxsize=4)
def _advice(text: str) -> Advice | None:
    from pydantic import ValidationError

    from engine.config import Config
    from engine.explain.known import Known
    from engine.keys import field_types, with_values
    from engine.reading.origins import DEFAULT
    from engine.rules import check
    from engine.sources import Loaded

    tables, settled, capacity_bytes = json.loads(text)
    try:
        config = Config.model_validate(tables)
        config = with_values(config, _values(config, settled, capacity_bytes))
    except ValidationError:
        return None
    loaded = Loaded(
        config=config, origins=dict.fromkeys(field_types(), DEFAULT), findings=(), broken=frozenset(), stem="run"
    )
    report = check(loaded)
    if report.plan is None or not report.ok:
        return None
    return Advice(Known(replace(loaded, config=config), report, report.plan, None))


def _values(config: Any, settled: Mapping[str, Any], capacity_bytes: object) -> Edit:
    """What the launch has made of what the config leaves open: this machine may be another one."""
    values: Edit = {}
    if config.cluster.gpu == "auto" and isinstance(settled["gpu"], str):
        values["cluster.gpu"] = settled["gpu"]
    if config.cluster.gpus_per_node == "auto" and isinstance(settled["world_size"], int):
        values["cluster.gpus_per_node"] = max(1, settled["world_size"] // config.cluster.nodes)
    if settled["gpu"] == "cpu" and config.cluster.memory_gib is None and isinstance(capacity_bytes, int):
        values["cluster.memory_gib"] = capacity_bytes / (1 << 30)
    local, whole = settled["local_batch_size"], settled["global_batch_size"]
    if isinstance(local, int) and local != config.training.local_batch_size:
        # `auto`, or smaller than what was asked for, after an out-of-memory.
        values["training.local_batch_size"] = local
        if isinstance(whole, int) and config.training.global_batch_size != -1:
            values["training.global_batch_size"] = whole
    return values
