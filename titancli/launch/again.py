"""A smaller batch for a run whose memory ran out in its first steps.

Knows whether the end of a run calls for it, and what then changes in the run folder: the numbers that workers read,
and the plan. config.toml stays what was asked for. Does not start anything again (restart).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.planner.plan import Plan
from engine.settled import read_settled, with_settled, write_settled
from engine.shrink import FIRST_STEPS, is_out_of_memory, smaller
from engine.sources import Loaded
from titancli.launch.supervise import Ending
from titancli.monitor.failure import failures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The plan to start with; without one the run has ended, for the reason in `text`."""

    text: str
    plan: Plan | None


def with_smaller_batch(loaded: Loaded, plan: Plan, run: Path, ending: Ending, *, began: int) -> Again | None:
    """Makes a run folder ready for a smaller batch; None where its end is not one of memory, or nobody asked for it.

    Only in the first steps after the one that it began from: later the batch has fitted before, and a run that leaks
    would shrink for ever.
    """
    out = [failure for failure in failures_of(run, ending.state) if is_out_of_memory(failure.type, failure.message)]
    if not out or loaded.config.training.on_out_of_memory != "shrink":
        return None
    rank, step = out[0].rank, ending.state.step
    if step is not None and step - began > FIRST_STEPS:
        return Again(
            text=f"out of memory on rank {rank} after step {step}: only a run of {FIRST_STEPS} steps or less is "
            "started again with a smaller batch",
            plan=None,
        )
    settled = read_settled(run)
    found = smaller(with_settled(loaded, settled), plan)
    if found is None:
        return Again(text=f"out of memory on rank {rank}, and no smaller batch is left to try", plan=None)
    values, report = found
    assert report.plan is not None, "a smaller batch has a plan"
    write_settled(run, settled | values)
    (run / "plan.json").write_text(json.dumps(report.plan.to_json(), indent=1) + "\n", "utf-8")
    text = f"out of memory on rank {rank}: started again with {_batch(report.plan)} instead of {_batch(plan)}"
    return Again(text=text, plan=report.plan)


def _batch(plan: Plan) -> str:
    """`4 sequences at once and 2 accumulation steps`."""
    size = plan.microbatch_size
    pieces = f" in {plan.microbatches} microbatches" if plan.mesh.pp > 1 else ""
    steps = plan.gradient_accumulation_steps
    return f"{size} sequence{'s' if size != 1 else ''} at once{pieces} x {steps} accumulation"
