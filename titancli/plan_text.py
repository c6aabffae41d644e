"""How a plan is shown to a person: layout, speed, memory of each stage, whether it fits, and what became of settings.

Knows the words and their order. Does not know numbers of its own: they come from the Plan, and the
changes that would make it fit from the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from engine.planner.stack import STACKS
from titancli import figures
from titancli.charts import Pen, memory_chart, seconds, time_chart
from titancli.report import (
    BOLD,
    GREEN,
    RED,
    YELLOW,
    devices,
    hanging,
    paint,
    speed_unit,
    takes_colour,
    width_of,
    wrapped,
)

if TYPE_CHECKING:
    from engine.planner.plan import Plan, Stage
    from engine.rules import Fit, Report
    from engine.rules.ways import Way

_STATE_COLOURS = {"active": GREEN, "inactive": YELLOW, "rejected": RED}
_VERDICT_COLOURS = {"fits": GREEN, "tight": YELLOW, "does not fit": RED}
_MOST_CHANGES = 8


def say_plan(checked: Report, stream: TextIO | None = None) -> None:
    """Writes the plan of a report: layout, batch, speed, memory of each stage, fit, and each setting's state."""
    stream = stream or sys.stdout
    plan = checked.plan
    assert plan is not None, "only a report with a plan can show it"
    colour, width = takes_colour(stream), width_of(stream)

    def title(text: str) -> str:
        return paint(text, BOLD, colour)

    pen, room = Pen.of(stream), max(60, width)
    lines = [title("plan"), *_table(_facts(plan), width), "", title("speed"), *_table(_speed(plan), width)]
    shards = "ZeRO-1" if STACKS[plan.stack].shards_only_optimizer else "FSDP"
    lines += time_chart(plan.time, width=room, pen=pen, shards=shards)[1:]
    unit, unit_bytes = ("GiB", 1 << 30) if plan.memory.static_bytes >= 1 << 30 else ("MiB", 1 << 20)
    lines += ["", title(f"memory of one rank, in {unit}"), *_stage_table(plan, unit_bytes, width)]
    lines += [*hanging("  ", _memory_note(plan), width), *memory_chart(plan, width=room, pen=pen)[1:]]
    if checked.fit is not None:
        verdict = checked.fit.verdict
        first, *more = wrapped(f"  {verdict}: {_fit_note(plan, checked.fit)}", width, indent=4)
        first = first.replace(verdict, paint(verdict, _VERDICT_COLOURS[verdict], colour), 1)
        lines += ["", title("fit"), first, *more, *_changes(checked.fit, plan, width)]
    if checked.settings:
        # What a finding says stands there.
        told = {f"{finding.rule}: {finding.message}": finding.rule for finding in checked.findings}
        lines += ["", title("settings")]
        for setting in checked.settings:
            reason = told.get(setting.reason, setting.reason)
            text = f"{setting.key}: {reason}" if reason else setting.key
            state = paint(f"{setting.state:<9}", _STATE_COLOURS[setting.state], colour)
            first, *more = hanging(" " * 12, text, width)
            lines += [f"  {state} {first[12:]}", *more]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def rows(plan: Plan) -> list[tuple[str, str]]:
    """The plan in short, each row a name and its words: what runs, the memory of its fullest rank, speed and bubble."""
    memory, time = plan.memory, plan.time
    share = f"{100 * memory.needed_bytes / memory.capacity_bytes:.0f} %"
    used = f"{figures.memory(memory.needed_bytes)} of {figures.memory(memory.capacity_bytes)} on the fullest rank"
    bubble = None if time.bubble_s is None or not time.step_s else 100 * time.bubble_s / time.step_s
    waits = [("bubble", f"{figures.percent(bubble)} of the step")] if plan.mesh.pp > 1 else []
    return [*_facts(plan), ("memory", f"{used} ({share})"), *_speed(plan), *waits]


def _table(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    room = label_width(rows)
    return [line for name, value in rows for line in hanging(f"  {name:<{room}}", value, width)]


def label_width(rows: Sequence[tuple[str, str]]) -> int:
    """Columns for the names of rows, with the space behind them."""
    return max(14, *(len(name) + 1 for name, _ in rows))


def _facts(plan: Plan) -> list[tuple[str, str]]:
    mesh = plan.mesh
    axes = (("pp", mesh.pp), ("dp_replicate", mesh.dp_replicate), ("dp_shard", mesh.dp_shard), ("cp", mesh.cp))
    engine = [] if plan.stack == "titan" else [("engine", f"{plan.stack}, predicted with its own constants")]
    return [
        *engine,
        ("runs on", devices(plan.gpu, plan.world_size)),
        ("mesh", " x ".join(f"{name} {degree}" for name, degree in (*axes, ("tp", mesh.tp)))),
        ("model", f"{plan.parameters:,} parameters, {plan.model.n_layers} layers"),
        (
            "batch",
            f"{figures.many(plan.global_batch_size, 'sequence')} a step = {plan.local_batch_size} a data rank "
            f"x {figures.many(mesh.data_ranks, 'data rank')} x {plan.gradient_accumulation_steps} accumulation",
        ),
        ("microbatches", f"{plan.microbatches} of {plan.microbatch_size} in each accumulation step"),
        ("recompute", _recompute(plan)),
        ("tokens a step", f"{plan.tokens_per_step:,}"),
    ]


def _recompute(plan: Plan) -> str:
    """What is computed again in backward."""
    recompute = plan.recompute
    match recompute.mode:
        case "selective" if recompute.every is not None:
            return f"selective: every layer of {recompute.every} in full"
        case "selective":
            return "selective: all but products, attention and sums over ranks"
        case "memory_budget":
            return f"memory budget: the compiler keeps {100 * (recompute.budget or 0):.0f} %"
        case mode:
            return mode


def why_no_speed(plan: Plan) -> str:
    """Why there is no prediction of time."""
    if plan.gpu == "cpu" and plan.calibration is None:
        return "what this machine reaches is not measured; titan doctor --measure does it"
    return f"the rates of {plan.gpu} that are known do not tell; titan doctor --measure measures more"


def _speed(plan: Plan) -> list[tuple[str, str]]:
    """Predicted step time, rates and where the time goes; one line with the reason where it is not known."""
    time = plan.time
    if time.step_s is None:
        return [("step time", figures.not_known(why_no_speed(plan)))]
    found = [
        ("step time", seconds(time.step_s) if time.step_s < 10 else figures.duration(time.step_s)),
        (speed_unit(plan.gpu), figures.rate(plan.tokens_per_s_per_gpu)),
        ("MFU", figures.not_known(_NO_PEAK) if plan.mfu_pct is None else figures.percent(plan.mfu_pct) + _MFU),
    ]
    sent = _communication(plan)
    if sent:
        found.append(("communication", sent))
    rates = f"measured: {plan.calibration}" if plan.calibration else "what such GPUs usually sustain"
    return [*found, ("rates", rates)]


# How metrics.py states it in a run, so that both can be compared.
_MFU = " (bfloat16 peak; 6 FLOPs a weight and token, the full square of attention, nothing for recomputation)"
_NO_PEAK = "products are not in bfloat16, or its peak is not known"


def _communication(plan: Plan) -> str:
    """What each axis sends, and how much of it compute hides."""
    whole, exposed = plan.time.communication_s or {}, plan.time.per_axis or {}
    return ", ".join(
        f"{axis} {seconds(sent)} ({100 * (1 - min(1.0, exposed.get(axis, 0.0) / sent)):.0f} % hidden)"
        for axis, sent in whole.items()
        if sent
    )


def _stage_table(plan: Plan, unit_bytes: int, width: int) -> list[str]:
    """One row for each group of equal pipeline ranks; fits 60 columns, there with less air."""
    rows: list[tuple[str, ...]] = [("pp", "layers", "static", "activ.", "logits", "buffers", "peak", "held")]
    for stages in _alike(plan.stages):
        stage = stages[0]
        memory = stage.memory
        parts = (memory.static_bytes, memory.activations_bytes, memory.logits_bytes, memory.communication_bytes)
        rows.append(
            (
                figures.ranges(tuple(each.pp_rank for each in stages)),
                figures.ranges(stage.layers) if len(stages) == 1 else f"{len(stage.layers)} each",
                *(
                    figures.not_known() if part is None else f"{part / unit_bytes:.2f}"
                    for part in (*parts, memory.peak_bytes, memory.reserved_bytes)
                ),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    gap = "  " if 2 * len(widths) + sum(widths) <= width else " "
    return ["  " + gap.join(cell.rjust(size) for cell, size in zip(row, widths, strict=True)) for row in rows]


def _alike(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Successive stages with equal numbers, together where there are many of them."""
    if len(stages) <= 16:
        return [[stage] for stage in stages]
    groups = groupby(stages, key=lambda stage: (len(stage.layers), stage.parameters, stage.memory))
    return [list(group) for _, group in groups]


def _memory_note(plan: Plan) -> str:
    """What `static` and `held` are, and why the parts do not add up to the peak."""
    memory = plan.memory
    parts = {
        "weights": memory.masters_bytes,
        "their copies to compute with": memory.copies_bytes,
        "gradients": memory.grads_bytes,
        "optimizer states": memory.optimizer_bytes,
    }
    told = {name: part for name, part in parts.items() if part or name != "their copies to compute with"}
    text = "static: " + ", ".join(f"{name} {figures.memory(part)}" for name, part in told.items())
    if memory.activations_bytes is not None:
        text += "; activ., logits, buffers: each at its most; peak: the fullest moment, where not all are"
    return text + (
        "; held: by the allocator, with what it keeps to use again" if memory.reserved_bytes is not None else ""
    )


def _fit_note(plan: Plan, fit: Fit) -> str:
    """How full the fullest rank gets, where and when."""
    memory = plan.memory
    used = memory.peak_bytes or memory.static_bytes
    rank = f"pipeline rank {fit.pp_rank}" if plan.mesh.pp > 1 else "every rank"
    share = f"{100 * used / fit.capacity_bytes:.0f} %"
    text = f"{rank} uses {figures.memory(used)} of {figures.memory(fit.capacity_bytes)} ({share}) at its fullest"
    text += f" ({fit.moment})" if fit.moment else ""
    if fit.needed_bytes > used:
        share = f"{100 * fit.needed_bytes / fit.capacity_bytes:.0f} %"
        text += f", and the allocator holds {figures.memory(fit.needed_bytes)} ({share})"
    return text


def _changes(fit: Fit, plan: Plan, width: int) -> list[str]:
    """The changes that would be enough, with what they need and cost."""
    if not fit.ways:
        return []
    lines = ["  nearest changes that leave room:"]
    for way in fit.ways[:_MOST_CHANGES]:
        what = ", ".join(f"{key} = {value}" for key, value in way.edit.items())
        share = f"{100 * way.plan.memory.needed_bytes / plan.memory.capacity_bytes:.0f} % full"
        first, *more = hanging("      ", f"{what}: {share}{_cost(way)}", width)
        lines += [f"    {first.strip()}", *more]
    return lines


def _cost(way: Way) -> str:
    if way.slower_pct is None:
        return ""
    return f", {abs(way.slower_pct):.1f} % {'slower' if way.slower_pct > 0 else 'faster'}"
