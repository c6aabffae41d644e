"""A row of the table of features: when a key is asked for, why it may do nothing, what is said where it does.

Knows the reasons that several sections share: an axis of one rank, a switch that is off. Does not know the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from engine.config import Config
from engine.facts import Facts
from engine.keys import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting that was asked for, and whether it is in force."""

    key: str
    state: Literal["active", "inactive", "rejected"]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The object of `titan validate --json`."""
        return asdict(self)


@cache
def _defaults() -> Config:
    return Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A row: when `key` counts as asked for, why it may do nothing here, and what is to be said where it does.

    Without `asked`, any other value than the default asks for it. `idle` gives the reason why the
    rest of the config leaves the setting without effect, or None.
    """

    key: str
    asked: Callable[[Facts], bool] | None = None
    idle: Callable[[Facts], str | None] = lambda _: None
    note: Callable[[Facts], str] = lambda _: ""

    def is_asked(self, f: Facts) -> bool:
        """Whether the config asks for it."""
        if self.asked is not None:
            return self.asked(f)
        return bool(value_of(f.config, self.key) != value_of(_defaults(), self.key))


def axis(name: str, key: str) -> Callable[[Facts], str | None]:
    """Idle while the axis has one rank."""
    return lambda f: f"{name}=1" if f.degrees[key] == 1 else None


def off(switch: str) -> Callable[[Facts], str | None]:
    """Idle while another key is off."""
    return lambda f: None if value_of(f.config, switch) else f"{switch} is off"


def unless(key: str, *values: str) -> Callable[[Facts], str | None]:
    """Idle unless another key has one of these values."""
    return lambda f: None if value_of(f.config, key) in values else f"{key} is not {' or '.join(values)}"


def under(switch: str, *keys: str) -> tuple[Feature, ...]:
    """Keys of a section that do nothing while its switch is off."""
    section = switch.rpartition(".")[0]
    return tuple(Feature(key=f"{section}.{key}", idle=off(switch)) for key in keys)


def unsharded(f: Facts) -> str | None:
    """Idle while FSDP has one rank."""
    single = f.has("mesh") and f.known_mesh.fsdp == 1
    return f"dp_shard={f.known_mesh.dp_shard}: nothing is sharded" if single else None
