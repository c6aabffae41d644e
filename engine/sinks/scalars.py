"""Events as named numbers of steps, under the names that curves have.

Knows how fields become names (`loss`, `memory/active_bytes`, `breakdown/exposed_comm_s/tp`) and which step a figure
belongs to. Does not know who draws them. What is not known, or not finite, is no number and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.events import EVERY_EVENT, Event

# They tell of the moment of a report.
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
    """Finds the step of numbers whose event names none.

    A report writes what is true at its moment a little before its step or, where another thread reads it, a little
    after: such figures are the newest step's unless it has some of their kind, and then the next one's.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, float]] = {}
        self._there: set[str] | None = None
        self.step = 0

    def take(self, event: Event) -> dict[str, float]:
        """The numbers that are to be told now, of `self.step`; none where the event has none or they wait."""
        found, kind = scalars_of(event), str(event["kind"])
        if kind in _WITHOUT_STEP:
            if self._there is None or kind in self._there:
                self._waiting[kind] = found
                return {}
            self._there.add(kind)
            return found
        if not found or not isinstance(event.get("step"), int):
            return {}
        self.step = event["step"]
        if kind == "step":
            waiting, self._waiting = self._waiting, {}
            self._there = set(waiting)
            for more in waiting.values():
                found = {**more, **found}
        return found
