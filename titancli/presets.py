"""`titan presets`: the configs that titan ships, and what each is for.

Shows what the presets' own plans say. Speed is null until titan has a model of time, and what is
verified until it was measured on the hardware that the preset names.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import Any

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.planner.plan import Plan, plan
from engine.sources import load, preset_names
from titancli import figures, report


def presets(*, as_json: bool) -> int:
    """Lists the presets as text or as a JSON list; always 0."""
    rows = [(name, config, plan(config, resolve_cluster(config.cluster))) for name, config in _configs()]
    if as_json:
        sys.stdout.write(json.dumps([_to_json(*row) for row in rows]) + "\n")
        return 0
    for row in rows:
        _say(*row)
    width = min(100, shutil.get_terminal_size().columns)
    for text in (
        "n/a: titan has no model of time yet, and these presets were not measured yet",
        "try one: titan validate --preset NAME; train with it: titan launch --preset NAME",
    ):
        report.say(textwrap.fill(text, width), tint="faint")
    return 0


def _configs() -> list[tuple[str, Config]]:
    """Presets from the smallest to the largest; the environment is left out: a preset is listed as shipped."""
    configs = [(name, load(preset=name, environ={}).config) for name in preset_names()]

    def processes(entry: tuple[str, Config]) -> int:
        cluster = entry[1].cluster
        return cluster.nodes * (cluster.gpus_per_node if isinstance(cluster.gpus_per_node, int) else 1)

    return sorted(configs, key=processes)


def _to_json(name: str, config: Config, resolved: Plan) -> dict[str, Any]:
    return {
        "name": name,
        "description": config.job.description,
        "model": f"{config.model.name} {config.model.flavor}",
        "parameters": resolved.parameters,
        "gpu": resolved.gpu,
        "gpus": resolved.world_size,
        "nodes": config.cluster.nodes,
        "mesh": asdict(resolved.mesh),
        "layout": report.layout(resolved),
        "seq_len": config.training.seq_len,
        "tokens_per_step": resolved.tokens_per_step,
        "predicted": {
            "tokens_per_s_per_gpu": resolved.tokens_per_s_per_gpu,
            "mfu_pct": resolved.mfu_pct,
            "peak_bytes": resolved.memory.peak_bytes,
        },
        "verified": {"tokens_per_s_per_gpu": None, "mfu_pct": None, "peak_bytes": None},
    }


def _say(name: str, config: Config, resolved: Plan) -> None:
    width = min(100, shutil.get_terminal_size().columns)
    predicted = figures.rate(resolved.tokens_per_s_per_gpu)
    facts = (
        ("model", f"{config.model.name} {config.model.flavor}, {figures.amount(resolved.parameters)} parameters"),
        ("runs on", report.devices(resolved.gpu, resolved.world_size)),
        ("layout", report.layout(resolved)),
        ("sequence", f"{config.training.seq_len:,} tokens; {resolved.tokens_per_step:,} tokens a step"),
        ("peak memory", f"predicted {figures.memory(resolved.memory.peak_bytes)}, verified {figures.not_known()}"),
        ("tokens/s/GPU", f"predicted {predicted}, verified {figures.not_known()}"),
    )
    report.say(name, tint="good")
    for label, text in facts:
        indent = f"  {label:<13} "
        report.say(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=" " * len(indent)))
    report.say("")
