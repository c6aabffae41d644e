"""What every key of a config means, by key: of a preset, or of defaults with dotted keys replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from engine.config import Config
from engine.explain import Explained, explained
from engine.keys import with_values
from engine.rules import check
from engine.sources import Loaded, load

ByKey = dict[str, Explained]
Explain = Callable[[dict[str, Any]], ByKey]


def by_key(loaded: Loaded) -> ByKey:
    """All that is said, by key."""
    return {each.key: each for each in explained(loaded, check(loaded))}


@cache
def _preset(name: str) -> ByKey:
    return by_key(load(preset=name, environ={}))


@pytest.fixture
def preset() -> Callable[[str], ByKey]:
    """A preset explained; each once in a session."""
    return _preset


@pytest.fixture
def explain() -> Explain:
    """One node of 8 H100 with 80 GB, and a small model, with dotted keys replaced."""

    def explain(edits: dict[str, Any]) -> ByKey:
        usual = {"cluster.gpu": "h100-80", "cluster.gpus_per_node": 8, "cluster.calibration": "none"}
        config = with_values(Config(), usual | edits)
        return by_key(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"))

    return explain
