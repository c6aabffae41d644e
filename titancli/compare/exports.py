"""The comparison for other programs: one object as JSON, all curves as CSV.

Knows names of fields. What is not known is null, or empty in a CSV.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from titancli.compare.beside import Beside, Row, ratio


def to_json(compared: Beside) -> dict[str, Any]:
    """The object of `titan compare --json`; unknown figures are null."""
    reference = compared.reference
    return {
        "reference": reference.name,
        "at_tokens": None if compared.tokens is None else round(compared.tokens),
        "at_seconds": compared.seconds,
        "differences": [
            {"key": each.key, "values": dict(zip([row.name for row in compared.rows], each.values, strict=True))}
            for each in compared.differences
        ],
        "runs": [_object(row, reference) for row in compared.rows],
    }


def _object(row: Row, reference: Row) -> dict[str, Any]:
    run, held = row.run, row.run.held
    figures = {
        "loss": (row.loss, reference.loss),
        "loss_at_tokens": (row.loss_at_tokens, reference.loss_at_tokens),
        "loss_at_seconds": (row.loss_at_seconds, reference.loss_at_seconds),
        "validation_loss": (run.validation_loss, reference.run.validation_loss),
        "tokens_per_s_per_gpu": (row.tokens_per_s_per_gpu, reference.tokens_per_s_per_gpu),
        "step_s": (row.step_s, reference.step_s),
        "mfu_pct": (row.mfu_pct, reference.mfu_pct),
        "peak_bytes": (row.peak_bytes, reference.peak_bytes),
    }
    return {
        "name": row.name,
        "folder": str(run.folder),
        "state": run.state,
        "failure": run.failure,
        "step": run.step,
        "steps": run.steps,
        "validation_step": run.validation_step,
        "redone_steps": row.curve.redone,
        "attempts": row.curve.attempts,
        "world_size": run.world_size,
        "gpu": run.gpu_name or run.gpu,
        "tokens": row.curve.tokens[-1] if row.curve.tokens else None,
        "seconds": row.curve.seconds[-1] if row.curve.seconds else None,
        **{name: value for name, (value, _) in figures.items()},
        "ratios": {name: ratio(*pair) for name, pair in figures.items()},
        "memory": None
        if held is None
        else {
            "rank": held.rank,
            "of": held.kind,
            "planned_bytes": held.planned_bytes,
            "of_plan": held.of_plan,
            "capacity_bytes": held.capacity_bytes,
        },
        "idle_pct": None if run.idle is None else dict(run.idle),
    }


def to_csv(compared: Beside) -> str:
    """A line for each logged step of each run: run, step, tokens, seconds, loss."""
    told = io.StringIO()
    rows = csv.writer(told, lineterminator="\n")
    rows.writerow(("run", "step", "tokens", "seconds", "loss"))
    for row in compared.rows:
        curve = row.curve
        for index, step in enumerate(curve.steps):
            tokens = "" if curve.tokens is None else curve.tokens[index]
            seconds = "" if curve.seconds is None else f"{curve.seconds[index]:.6g}"
            loss = curve.losses[index]
            rows.writerow((row.name, step, tokens, seconds, "" if loss is None else loss))
    return told.getvalue()
