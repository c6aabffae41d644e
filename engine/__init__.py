"""titan's engine as a library.

`load` reads a config from all its sources, `check` judges it, `plan` resolves it, `fit` trains
it. Each name is imported when it is first used, so that importing `engine` stays free of torch
(only `fit` needs it).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.loop import fit as fit
    from engine.planner.plan import plan as plan
    from engine.rules import check as check
    from engine.sources import load as load

__all__ = ["check", "fit", "load", "plan"]

_HOMES = {"load": "engine.sources", "check": "engine.rules", "plan": "engine.planner.plan", "fit": "engine.loop"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
