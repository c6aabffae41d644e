"""A config that notes which of its keys are read.

With it, rules whose keys all parsed can run beside schema errors: one that read a key that did
not parse stays silent. Knows sections and nothing of rules.
"""

from __future__ import annotations

from typing import Any, cast

from engine.config import Config, Section


class _Watched:
    """A section that notes in `reads` which dotted keys are read from it."""

    def __init__(self, section: Section, prefix: str, reads: set[str]) -> None:
        self._section, self._prefix, self._reads = section, prefix, reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._section, name)
        if isinstance(value, Section):
            return _Watched(value, f"{self._prefix}{name}.", self._reads)
        self._reads.add(self._prefix + name)
        return value

    def model_dump(self) -> dict[str, Any]:
        """The whole section as a plain table: every key of it counts as read."""
        values = {name: getattr(self, name) for name in type(self._section).model_fields}
        return {name: value.model_dump() if isinstance(value, _Watched) else value for name, value in values.items()}


def watched(config: Config, reads: set[str]) -> Config:
    """A stand-in for `config` that adds every dotted key that is read from it to `reads`."""
    return cast(Config, _Watched(config, "", reads))
