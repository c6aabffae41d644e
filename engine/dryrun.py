"""`python -m engine.dryrun < config.json`: every pipeline rank, built and stepped without its GPU.

Reads a config as `Config.model_dump_json` writes it, from standard input. Writes one JSON list to
standard output: for each pipeline rank its `ranks`, its unsharded `parameters`, and the bytes
it holds at its fullest moment. Knows which ranks stand for which and what is left out. Does not
judge: whether it fits is for those who know the hardware.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from engine.config import Config
from engine.dry.processes import Died, each
from engine.dry.rank import Stepped, step_rank
from engine.dry.shorter import shorter
from engine.planner.plan import Plan, plan

# Each holds about 0.35 GiB, most of it torch.
_MOST_AT_ONCE = 8


def dry_run(config: Config, resolved: Plan) -> list[dict[str, Any]]:
    """One row for each pipeline rank, as in `titan validate --dry-run --json`; a rank that fails stops no other.

    `kind_bytes` is what the peak is made of, `peaks_bytes` the peak of each moment, `note` what was left out.
    """
    at_once = min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    results = each(partial(_step, config, resolved), resolved.mesh.pp, at_once=at_once)
    return [_row(config, resolved, pp_rank, result) for pp_rank, result in enumerate(results)]


def _step(config: Config, resolved: Plan, pp_rank: int) -> Stepped:
    short = shorter(config, resolved, pp_rank)
    return step_rank(short, plan(short), pp_rank)


def _row(config: Config, resolved: Plan, pp_rank: int, result: Stepped | Died) -> dict[str, Any]:
    size = resolved.world_size // resolved.mesh.pp
    row: dict[str, Any] = dict.fromkeys(("parameters", "peak_bytes", "moment", "kind_bytes", "peaks_bytes", "seconds"))
    row |= {"ranks": list(range(pp_rank * size, (pp_rank + 1) * size)), "pp_rank": pp_rank}
    row["note"] = "; ".join(_left_out(config, resolved, pp_rank))
    if isinstance(result, Died):
        return {**row, "error": result.how}
    row |= {"parameters": result.parameters, "seconds": round(result.seconds, 3), "error": result.error}
    if result.error is None:
        row |= {
            "peak_bytes": result.peak.total_bytes,
            "moment": result.peak.moment,
            "kind_bytes": result.peak.kind_bytes,
            "peaks_bytes": result.peaks_bytes,
        }
    return row


def _left_out(config: Config, resolved: Plan, pp_rank: int) -> Iterator[str]:
    """What the real run has and this one has not."""
    yield "sizes only: what kernels and the allocator take for themselves is not counted"
    if config.compile.enable:
        yield "without the compiler, which holds less"
    if resolved.recompute.mode == "memory_budget":
        yield "nothing is recomputed: under memory_budget the compiler decides"
    if config.quantize.dense.mx.enable and not config.quantize.dense.mx.emulate:
        yield "MXFP8 products are emulated, which holds more"
    if config.data.document_mask and resolved.gpu != "cpu":
        yield "documents are not masked: FlexAttention keeps what plain attention keeps"
    run = plan(shorter(config, resolved, pp_rank))
    if run.microbatches < resolved.microbatches:
        yield f"{run.microbatches} of {resolved.microbatches} microbatches: later ones hold no more"
    if run.gradient_accumulation_steps < resolved.gradient_accumulation_steps:
        steps = resolved.gradient_accumulation_steps
        yield f"{run.gradient_accumulation_steps} of {steps} accumulation steps: later ones hold no more"


def main() -> int:
    """Runs the config of standard input; the rows say what failed, so it always returns 0."""
    config = Config.model_validate_json(sys.stdin.read())
    rows = dry_run(config, plan(config))
    sys.stdout.write(json.dumps(rows, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
