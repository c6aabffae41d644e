"""What a launch has settled of a config, beside the config as it was asked for.

Knows the file `settled.json` of a run folder: dotted keys whose values go before those of
config.toml. There are two files because they answer two questions. config.toml is what a person
asked for: a later launch of the same name is compared with it, and `auto` there stays `auto`. This one is
what the launcher made of it, so that every worker trains the launcher's plan, whatever its own
hardware would have made of `auto`, and after an out-of-memory the smaller one. Does not choose values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import Config
from engine.keys import with_values
from engine.planner.plan import Plan
from engine.sources import Loaded

FILE = "settled.json"


def settled_by(config: Config, plan: Plan) -> dict[str, Any]:
    """The keys that a config leaves open, with the numbers of its plan; empty where it leaves none."""
    values: dict[str, Any] = {}
    if config.cluster.gpu not in ("auto", plan.gpu):
        values["cluster.gpu"] = plan.gpu
    if config.training.local_batch_size == "auto":
        values["training.local_batch_size"] = plan.local_batch_size
    if config.activation_checkpoint.mode == "auto":
        values["activation_checkpoint.mode"] = plan.recompute.mode
        values["activation_checkpoint.selective_ac_option"] = plan.recompute.every or "op"
    return values


def write_settled(run: Path, values: Mapping[str, Any]) -> None:
    """Puts the values into a run folder, whole or not at all; nothing where there are none."""
    if not values:
        return
    partial = run / f".{FILE}.{os.getpid()}"
    try:
        partial.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
        partial.replace(run / FILE)
    finally:
        partial.unlink(missing_ok=True)


def read_settled(run: Path) -> dict[str, Any]:
    """The values of a run folder; empty where it has none."""
    try:
        values: dict[str, Any] = json.loads((run / FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return values


def with_settled(loaded: Loaded, values: Mapping[str, Any]) -> Loaded:
    """A config as the run has it; where its keys were written stays the same."""
    return replace(loaded, config=with_values(loaded.config, dict(values))) if values else loaded
