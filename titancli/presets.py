"""`titan presets`: the configs that titan ships, and what each is for.

Shows what the presets' own plans predict, beside what others published of such a run. What is verified is null until it
was measured on the hardware that the preset names.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from engine.calibration import CalibrationError
from engine.config import Cluster as ClusterConfig
from engine.config import Config
from engine.hardware import Cluster, resolve_cluster
from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.stack import STACKS, TITAN, Stack
from engine.sources import load, preset_names
from titancli import figures, report
from titancli.plan_text import why_no_speed
from titancli.published import Published, published_runs

_NOT_VERIFIED = {"tokens_per_s_per_gpu": None, "mfu_pct": None, "peak_bytes": None, "reserved_bytes": None}


def presets(*, as_json: bool) -> int:
    """Lists the presets as text or as a JSON list; always 0."""
    rows = [(name, config, _planned(config)) for name, config in _configs()]
    if as_json:
        sys.stdout.write(json.dumps([_to_json(*row) for row in rows]) + "\n")
        return 0
    for row in rows:
        _say(*row)
    width = report.width_of(sys.stdout)
    for text in (
        "predicted: by titan's plan, for its own engine; published: what another engine reached, by its authors' own "
        "account; verified, on the GPUs named, is none of them yet",
        "start from one: titan init --preset NAME; look at it: titan validate --preset NAME; train with it as it is: "
        "titan launch --preset NAME",
    ):
        for line in report.wrapped(text, width, indent=0):
            report.say(line, tint="faint")
    return 0


def _planned(config: Config, stack: Stack = TITAN) -> Plan:
    return plan(config, _cluster_of(config.cluster), stack=stack)


@cache
def _cluster_of(config: ClusterConfig) -> Cluster:
    """The GPUs of a preset. A damaged calibration is told and left out: a list is no place to fail for one of them."""
    try:
        return resolve_cluster(config)
    except CalibrationError as damaged:
        report.say_findings([replace(finding, severity="warning") for finding in damaged.findings])
        return resolve_cluster(config.model_copy(update={"calibration": "none"}))


def _configs() -> list[tuple[str, Config]]:
    """Presets from the smallest to the largest; the environment is left out: a preset is listed as shipped."""
    configs = [(name, load(preset=name, environ={}).config) for name in preset_names()]

    def processes(entry: tuple[str, Config]) -> int:
        cluster = entry[1].cluster
        return cluster.nodes * (cluster.gpus_per_node if isinstance(cluster.gpus_per_node, int) else 1)

    return sorted(configs, key=processes)


def _to_json(name: str, config: Config, resolved: Plan) -> dict[str, Any]:
    run = published_runs().get(name)
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
        "predicted": _figures(resolved),
        "published": None if run is None else _published_json(config, run),
        "verified": _NOT_VERIFIED,
    }


def _figures(resolved: Plan) -> dict[str, float | int | None]:
    return {
        "tokens_per_s_per_gpu": resolved.tokens_per_s_per_gpu,
        "mfu_pct": resolved.mfu_pct,
        "peak_bytes": resolved.memory.peak_bytes,
        "reserved_bytes": resolved.memory.reserved_bytes,
    }


def _published_json(config: Config, run: Published) -> dict[str, Any]:
    """What was published, and what the planner predicts of the engine that ran it."""
    theirs = plan_of_published(config, run)
    return {
        "tokens_per_s_per_gpu": run.tokens_per_s_per_gpu,
        "reserved_bytes": run.held_bytes,
        "engine": run.engine,
        "gpu": theirs.gpu,
        "layout": report.layout(theirs),
        "config": run.config,
        "source": run.source,
        "predicted": _figures(theirs),
    }


def plan_of_published(config: Config, run: Published) -> Plan:
    """The plan of a published run, on its own GPUs, for the engine that ran it."""
    asked = with_values(config, run.config)
    return _planned(asked, STACKS[run.engine])


def _say(name: str, config: Config, resolved: Plan) -> None:
    width = report.width_of(sys.stdout)
    facts = [
        ("model", f"{config.model.name} {config.model.flavor}, {figures.amount(resolved.parameters)} parameters"),
        ("runs on", report.devices(resolved.gpu, resolved.world_size)),
        ("layout", report.layout(resolved)),
        ("sequence", f"{config.training.seq_len:,} tokens; {resolved.tokens_per_step:,} tokens a step"),
        ("predicted", _predicted(resolved)),
        *_published(config, published_runs().get(name)),
        ("verified", figures.not_known()),
    ]
    report.say(name, tint="good")
    for label, text in facts:
        for line in report.hanging(f"  {label:<13} ", text, width):
            report.say(line)
    report.say("")


def _predicted(resolved: Plan) -> str:
    memory = resolved.memory
    rate = f"{report.speed_unit(resolved.gpu)} {figures.rate(resolved.tokens_per_s_per_gpu, why_no_speed(resolved))}"
    mfu = f" (MFU {figures.percent(resolved.mfu_pct)})" if resolved.mfu_pct is not None else ""
    held = f", {figures.memory(memory.reserved_bytes)} held by the allocator" if memory.reserved_bytes else ""
    return f"{rate}{mfu}; memory {figures.memory(memory.peak_bytes)} at its fullest{held}"


def _published(config: Config, run: Published | None) -> list[tuple[str, str]]:
    """The row of the published run: its figures, the planner's for the engine that ran it, and where it stands."""
    if run is None:
        return []
    theirs = plan_of_published(config, run)
    rate, held = figures.rate(theirs.tokens_per_s_per_gpu), figures.memory(theirs.memory.reserved_bytes)
    text = f"tokens/s/GPU {figures.rate(run.tokens_per_s_per_gpu)}; {figures.memory(run.held_bytes)} held; by "
    text += f"{run.engine} on {report.devices(theirs.gpu, theirs.world_size)}, {report.layout(theirs)} "
    text += f"with {', '.join(f'{key} = {_word(value)}' for key, value in run.config.items())} "
    text += f"(the plan for it: {rate}; {held}); {run.source}"
    return [("published", text)]


def _word(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
