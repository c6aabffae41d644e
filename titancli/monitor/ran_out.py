"""The figures of an out-of-memory, as the rank that met it told them.

Knows the field `memory` of `run_ended`. Does not know what the plan had said (launch/memory_words).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titancli.monitor.values import as_text, as_whole

_FIGURES = (
    *("step", "asked_bytes", "allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "free_bytes", "total_bytes"),
    "host_rss_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the system lets a process have: the name of the limit, its size, and how much of it was used after."""

    name: str
    bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another process that held memory of the same card."""

    pid: int
    name: str | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOut:
    """When memory ran out, and how it stood then; None is not known. `others` is None where nobody could tell."""

    moment: str | None = None
    step: int | None = None
    asked_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    host_rss_bytes: int | None = None
    limit: Limit | None = None
    others: tuple[Other, ...] | None = None

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether a card's memory ran out, and not the host's."""
        return self.reserved_bytes is not None

    @classmethod
    def read(cls, told: object) -> RanOut | None:
        """The figures of the field; None where an event has none."""
        if not isinstance(told, Mapping):
            return None
        return cls(
            moment=as_text(told.get("moment")),
            limit=_limit(told.get("limit")),
            others=_others(told.get("others")),
            **{name: as_whole(told.get(name)) for name in _FIGURES},
        )


def _limit(told: object) -> Limit | None:
    match told:
        case {"name": str(name), "bytes": int(size), "used_bytes": int(used)}:
            return Limit(name=name, bytes=size, used_bytes=used)
        case _:
            return None


def _others(told: object) -> tuple[Other, ...] | None:
    if not isinstance(told, list):
        return None
    return tuple(_other(one, pid) for one in told if isinstance(one, dict) and (pid := as_whole(one.get("pid"))))


def _other(told: Mapping[str, Any], pid: int) -> Other:
    return Other(pid=pid, name=as_text(told.get("name")), bytes=as_whole(told.get("bytes")))
