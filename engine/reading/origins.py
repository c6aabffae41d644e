"""Where the value of a key came from, and how that is said in a finding.

Knows places. Does not know values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

OriginKind = Literal["default", "preset", "file", "environment", "flag"]


class Place(NamedTuple):
    """The place fields of a Finding: a file with its line, or the source in words."""

    file: str | None
    line: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written.

    `file` and `line` are set for presets and files; `name` is the preset, the variable
    (`TITAN_TRAINING__SEQ_LEN`) or the flag as typed (`--training.seq_len`).
    """

    kind: OriginKind
    file: str | None = None
    line: int | None = None
    name: str | None = None

    @property
    def place(self) -> Place:
        """The place fields of a Finding about this value."""
        if self.file is not None:
            return Place(self.file, self.line, None)
        return Place(None, None, f"{self.kind} {self.name}" if self.name else self.kind)


DEFAULT = Origin("default")


def locate(origins: Mapping[str, Origin], key: str) -> Place:
    """Where a dotted key got its value, as (file, line, source); nothing known: all three are None.

    For a section, the first of its keys that somebody has written.
    """
    if key in origins:
        return origins[key].place
    below = (origin for name, origin in origins.items() if name.startswith(f"{key}.") and origin != DEFAULT)
    return next((origin.place for origin in below), Place(None, None, None))
