"""`titan validate --dry-run`: the real engine for every pipeline rank, in a process that has no GPU.

Knows how `python -m engine.dryrun` is started and ended, and what its figures mean for the hardware
that the plan is for. Does not know how ranks are built (engine/dry).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from engine.config import Config
from engine.errors import Finding
from engine.planner.plan import Plan
from engine.sources import Loaded, locate
from titancli import figures, report
from titancli.engine_process import engine_process

GIB = 1 << 30

Row: TypeAlias = dict[str, Any]
"""A pipeline rank, as in the JSON: ranks, pp_rank, parameters, peak_bytes, seconds, error, and more."""


def run(config: Config) -> list[Row] | Finding:
    """The rows of a dry run, by pipeline rank, or how its process died; it never outlives this call."""
    with engine_process("engine.dryrun", environ={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}) as process:
        out, _ = process.popen.communicate(config.model_dump_json())
        if process.popen.returncode != 0:
            message = f"the process of the dry run {process.death}"
            return report.error("B802", message, "run it again with more free memory, or validate without --dry-run")
    rows: list[Row] = json.loads(out)
    return rows


def judge(loaded: Loaded, plan: Plan, rows: Sequence[Row]) -> list[Finding]:
    """What the rows say against the config: ranks that do not run, and ranks that would hold too much."""
    findings = [_failed(row) for row in rows if row["error"]]
    peaks = {row["pp_rank"]: row["peak_bytes"] for row in rows if row["peak_bytes"]}
    capacity_bytes = plan.memory.capacity_bytes
    over = tuple(pp_rank for pp_rank, peak in peaks.items() if peak > capacity_bytes)
    if over:
        findings.append(_too_much(loaded, plan, over, max(peaks.values())))
    return findings


def _failed(row: Row) -> Finding:
    ranks = figures.ranges(tuple(row["ranks"]))
    message = f"pipeline rank {row['pp_rank']} (ranks {ranks}) does not run: {row['error']}"
    return report.error("B801", message, "change what the message names; the other pipeline ranks are told beside it")


def _too_much(loaded: Loaded, plan: Plan, over: tuple[int, ...], peak_bytes: int) -> Finding:
    """An error; only a warning where the run is compiled and the plan, which knows what that saves, lets it through."""
    key = "training.local_batch_size"
    file, line, source = locate(loaded.origins, key)
    holds = f"pipeline rank{'s' if len(over) > 1 else ''} {figures.ranges(over)}: a dry run holds"
    holds += f" {figures.memory(peak_bytes)}, more than the {figures.memory(plan.memory.capacity_bytes)} of {plan.gpu}"
    fix = "set it lower, or recompute or shard more"
    finding = Finding(
        rule="M503", severity="error", key=key, message=holds, fix=fix, file=file, line=line, source=source
    )
    planned = max(stage.memory.peak_bytes or 0 for stage in plan.stages)
    if not loaded.config.compile.enable or not planned or plan.memory.fits is False:
        return finding
    message = f"{holds}; compiled it holds less, {figures.memory(planned)} by the plan"
    return replace(finding, severity="warning", message=message)


def say(plan: Plan, rows: Sequence[Row]) -> None:
    """Writes the table, and under it what was left out."""
    capacity_bytes = plan.memory.capacity_bytes
    unit, unit_bytes = ("GiB", GIB) if max(row["peak_bytes"] or 0 for row in rows) >= GIB else ("MiB", 1 << 20)
    table = [("pp", "ranks", "layers", "params", "peak", "plan", "of card", "seconds")]
    for row in rows:
        stage = plan.stages[row["pp_rank"]]
        peak, planned = row["peak_bytes"], stage.memory.peak_bytes
        table.append(
            (
                str(row["pp_rank"]),
                figures.ranges(tuple(row["ranks"])),
                figures.ranges(stage.layers),
                figures.amount(row["parameters"]),
                figures.NOT_KNOWN if peak is None else f"{peak / unit_bytes:.2f}",
                figures.NOT_KNOWN if planned is None else f"{planned / unit_bytes:.2f}",
                figures.percent(None if peak is None else 100 * peak / capacity_bytes),
                figures.NOT_KNOWN if row["seconds"] is None else f"{row['seconds']:.1f}",
            )
        )
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    report.say(f"\ndry run, in {unit} of one rank: what it held, and what the plan predicts")
    for cells in table:
        report.say("  " + "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    for note in dict.fromkeys(part for row in rows for part in row["note"].split("; ")):
        report.say(f"  {note}", tint="faint")
