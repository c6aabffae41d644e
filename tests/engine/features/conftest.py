"""What tests of settings share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import Config
from engine.features import Setting
from engine.keys import with_values
from engine.rules import Report, check
from engine.sources import Loaded


@pytest.fixture
def report() -> Callable[..., Report]:
    """A check of the debug model with dotted keys replaced."""

    def report(edits: dict[str, Any], *, gpus: int = 8, gpu: str = "b200") -> Report:
        config = with_values(Config(), {"cluster.gpu": gpu, "cluster.gpus_per_node": gpus} | edits)
        return check(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"))

    return report


@pytest.fixture
def setting(report: Callable[..., Report]) -> Callable[..., Setting | None]:
    """What that check says of one key; None where it says nothing."""

    def setting(edits: dict[str, Any], key: str, **hardware: Any) -> Setting | None:
        return next((found for found in report(edits, **hardware).settings if found.key == key), None)

    return setting
