"""The file that `titan init` writes: its name, whether it can be written, and what goes into it.

Knows names and keys. How a file gets its place is whole_file's, and how its text looks config_file's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from engine.config import Config
from engine.errors import TitanError
from engine.hardware import Cluster
from engine.keys import field_types, value_of
from engine.planner.search import GoalName
from titancli import report
from titancli.config_file import Written, check_target, config_text, schema_line, write_config
from titancli.init.plans import Plans

# A config and its schema, with room for a file system's own.
_LEAST_FREE_BYTES = 256 * 1024


def check_place(output: str | None, *, force: bool) -> None:
    """TitanError where the file, or without a name any file here, cannot be written; before anything is asked."""
    path = output if output is not None else "titan-config.toml"
    check_target(path, force=force or output is None)
    free_bytes = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    if free_bytes < _LEAST_FREE_BYTES:
        message = f"cannot write {path}: {free_bytes // 1024} KiB are free there"
        raise TitanError(report.error("U125", message, "choose another place"))


def name_for(config: Config, cluster: Cluster, goal: GoalName) -> str:
    """`llama3-8b-8xh100-80.toml`; a goal other than production stands in it."""
    parts = [config.model.name, config.model.flavor, f"{cluster.world_size}x{cluster.gpu.name}"]
    parts += [] if goal == "production" else [goal]
    return "-".join(parts).lower() + ".toml"


def free_name(path: str) -> str:
    """The path, or where a file has it, the first of NAME-2, NAME-3, ... that none has."""
    stem, ending = os.path.splitext(path)
    names = (path if number == 1 else f"{stem}-{number}{ending}" for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def write_plan(
    plans: Plans, choice: str, path: str, *, said: Iterable[str], asked_auto: Iterable[str], force: bool
) -> list[Written]:
    """Writes a plan as a config; `said` are keys that stand in it even where they have their defaults."""
    candidate, config = plans.candidate(choice), plans.config(choice)
    values: dict[str, Any] = dict(candidate.values)
    for key in field_types():
        value = value_of(config, key)
        if key in set(said) and value is not None:
            values.setdefault(key, list(value) if isinstance(value, tuple) else value)
    question = replace(plans.question, config=config)
    text = config_text(
        question, replace(candidate, values=values), schema=schema_line(path), keeps_auto=frozenset(asked_auto)
    )
    return write_config(path, text, force=force)
