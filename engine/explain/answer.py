"""The answer of `titan explain-config` for one key, as data.

Knows its parts and its JSON. Does not know how any of them is found (explain) nor how they are drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.sources import Origin


@dataclass(frozen=True, slots=True)
class Derived:
    """The value that a key left open comes to, and the formula with its numbers."""

    value: Any
    formula: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that follows from a key: its name with its unit, its value, and the formula with its numbers."""

    name: str
    value: Any
    formula: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What a key costs (positive) or saves (negative), and in words against what.

    `bytes` are those of the fullest rank, `ms` those of one optimizer step; None where the key has no such cost, or
    where it is not known.
    """

    bytes: int | None
    ms: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One key: its value, where that was written, and what it means for this run.

    `derived` is there where the config leaves the key open and the plan resolves it; `figures` are what else follows
    from it. `ties` says which ranks it makes wait for each other, `change` what to do about its cost; empty where there
    is nothing to say. Whether a setting is in force is in the report.
    """

    key: str
    value: Any
    origin: Origin
    doc: str
    derived: Derived | None
    figures: tuple[Figure, ...] = ()
    ties: str
    cost: Cost | None
    change: str

    @property
    def origin_kind(self) -> str:
        """Who gave the value: `derived` where nobody wrote it and the plan resolves it."""
        return "derived" if self.origin.kind == "default" and self.derived is not None else self.origin.kind

    def to_json(self) -> dict[str, Any]:
        """The object of `titan explain-config --json`."""
        return {
            "key": self.key,
            "value": self.value,
            "origin": {"kind": self.origin_kind, "file": self.origin.file, "line": self.origin.line},
            "doc": self.doc,
            "derived": None if self.derived is None else asdict(self.derived),
            "figures": [asdict(figure) for figure in self.figures],
            "ties": self.ties,
            "cost": None if self.cost is None else asdict(self.cost),
            "change": self.change,
        }
