"""Events as named numbers of steps, under the names that curves have.

Knows how fields become names (`loss`, `memory/active_bytes`, `breakdown/exposed_comm_s/tp`) and which step a figure
belongs to. Does not know who draws them. What is not known, or not finite, is no number and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.events import EVERY_EVENT, Event

# They tell of a moment, and are written before the step of the same report.
_WITHOUT_STEP = ("memory", "gpu")
_NO_FIGURES = ("run_started", "phase", "warning", "run_ended")


def scalars_of(event: Event) -> dict[str, float]:
    """The numbers of an event: those of a `step` by their fields, those of any other kind behind the kind's name."""
    kind = str(event["kind"])
    if kind in _NO_FIGURES:
        return {}
    fields = {name: value for name, value in event.items() if name not in (*EVERY_EVENT, "step")}
    return dict(_flat(fields, "" if kind == "step" else f"{kind}/"))


def _flat(fields: Mapping[str, Any], prefix: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[prefix + name] = value
    return found


class ByStep:
    """Numbers beside the step that they are of: figures of a moment wait for the step that is told next."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}
        self.step = 0

    def take(self, event: Event) -> dict[str, float]:
        """The numbers that are to be told now, of `self.step`; none where the event has none or they wait."""
        found = scalars_of(event)
        if event["kind"] in _WITHOUT_STEP:
            self._waiting |= found
            return {}
        if not found or not isinstance(event.get("step"), int):
            return {}
        self.step = event["step"]
        if event["kind"] == "step":
            found, self._waiting = {**self._waiting, **found}, {}
        return found
