"""In what the runs were asked, or given, to do something else: keys of their configs, ranks, GPUs and versions.

Knows which keys only name a run. Does not judge which difference matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from titancli.compare.reading import Run

_ONLY_NAMES = ("job.name", "job.description", "job.dump_folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key (or `ranks`, `gpu`, `versions.torch`, ...) and its value in each run; None where a run has none."""

    key: str
    values: tuple[Any, ...]


def differences(runs: Sequence[Run]) -> tuple[Difference, ...]:
    """All in which not all runs are alike, as far as is known: keys in the configs' order, then what they ran on."""
    tables = [dict(_flat(run.config)) | _found(run) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = (Difference(key=key, values=tuple(table.get(key) for table in tables)) for key in keys)
    return tuple(row for row in rows if row.key not in _ONLY_NAMES and _differ(row.values))


def _differ(values: Sequence[Any]) -> bool:
    """Whether any two values that are known are not the same."""
    known = [value for value in values if value is not None]
    return any(value != known[0] for value in known)


def _found(run: Run) -> dict[str, Any]:
    """What a run had rather than was asked for; of one that has not begun, nothing is known yet."""
    found = {
        "ranks": run.world_size or run.plan.get("world_size"),
        "gpu": run.gpu_name or run.gpu,
        "tokens a step": run.plan.get("tokens_per_step"),
    }
    return found | {f"versions.{name}": version for name, version in run.versions.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
