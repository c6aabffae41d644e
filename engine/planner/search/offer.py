"""A layout made whole: its config, judged by every rule, and its plan.

Knows what a config written from a layout says. Does not know which layouts there are.
"""

from __future__ import annotations

from typing import Any

from engine.config import Config
from engine.keys import field_types, value_of, with_values
from engine.planner.held import room_of
from engine.planner.plan import Plan, plan
from engine.planner.search.layouts import CP, PP, REPLICATE, SHARD, TP
from engine.planner.search.options import LOCAL_BATCH
from engine.planner.search.question import Question, Refusal

# Said even where they are what a config without them would have.
_ALWAYS = ("cluster.gpu", "cluster.nodes", "cluster.gpus_per_node", "model.name", "model.flavor", "training.seq_len")
_LAYOUT = (REPLICATE, SHARD, TP, CP, PP, LOCAL_BATCH)


class Offer:
    """Configs of one question; plans are made once."""

    def __init__(self, question: Question, refusal: Refusal) -> None:
        self._question, self._refusal = question, refusal
        self._plans: dict[tuple[tuple[str, Any], ...], Plan | str] = {}
        gpu = question.cluster.gpu
        self.most_bytes = int(room_of(gpu.name) * gpu.memory_bytes)

    def config(self, values: dict[str, Any]) -> Config:
        """The question's config with the keys of a layout."""
        return with_values(self._question.config, values)

    def keys(self, values: dict[str, Any]) -> dict[str, Any]:
        """All dotted keys that make the same config without any base: what is not a default, and the layout."""
        config = self.config(values)
        defaults = Config()
        said: dict[str, Any] = {}
        for key in field_types():
            value = value_of(config, key)
            if key in (*_ALWAYS, *_LAYOUT) or (value != value_of(defaults, key) and value is not None):
                said[key] = list(value) if isinstance(value, tuple) else value
        return said

    def plan(self, values: dict[str, Any]) -> Plan | str:
        """The plan of a layout, or the rule that refuses it, in words."""
        key = tuple(values.items())
        if key not in self._plans:
            config = self.config(values)
            refused = self._refusal(config, self._question.cluster)
            self._plans[key] = plan(config, self._question.cluster) if refused is None else refused
        return self._plans[key]
