"""A run that is started again, smaller, after an out-of-memory in its first steps.

Knows whether the end of a run calls for it, and what then changes in the run folder: the numbers
that workers read, the plan, one event, and torchrun's log, which is kept aside. config.toml stays
what was asked for. Does not start anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EXIT_RUN_FAILED
from engine.events import EventLog
from engine.planner.plan import Plan
from engine.settled import read_settled, with_settled, write_settled
from engine.shrink import FIRST_STEPS, is_out_of_memory, smaller
from engine.sources import Loaded
from titancli.launch.supervise import Ending
from titancli.monitor.failure import failures_of
from titancli.rank_logs import TORCHRUN_LOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The plan to start with, which the run's events tell; without one the run has ended, for the reason in `text`."""

    text: str
    plan: Plan | None


def after(loaded: Loaded, plan: Plan, run: Path, ending: Ending) -> Again | None:
    """Makes a run folder ready for a smaller batch; None where its end is not one of memory, or nobody asked for it.

    Only in the first steps: later the batch has fitted before, and a run that leaks would shrink for ever.
    """
    if ending.exit_code != EXIT_RUN_FAILED or loaded.config.training.on_out_of_memory != "shrink":
        return None
    out = [failure for failure in failures_of(run, ending.state) if is_out_of_memory(failure.type, failure.message)]
    if not out:
        return None
    rank, step = out[0].rank, ending.state.step
    if step is not None and step > FIRST_STEPS:
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
    text = f"out of memory on rank {rank}: started again with {_batch(report.plan)} instead of {_batch(plan)}"
    write_settled(run, settled | values)
    (run / "plan.json").write_text(json.dumps(report.plan.to_json(), indent=1) + "\n", "utf-8")
    _keep_log(run)
    events = EventLog(run, 0)
    events.write("warning", message=text, restarts=True)
    events.close()
    return Again(text=text, plan=report.plan)


def _batch(plan: Plan) -> str:
    """`4 sequences at once and 2 accumulation steps`."""
    size = plan.microbatch_size
    pieces = f" in {plan.microbatches} microbatches" if plan.mesh.pp > 1 else ""
    steps = plan.gradient_accumulation_steps
    return f"{size} sequence{'s' if size != 1 else ''} at once{pieces} x {steps} accumulation"


def _keep_log(run: Path) -> None:
    """Gives torchrun's log a number: a report of processes that are gone must not be read as one of the new ones."""
    logs = run / "logs"
    count = sum(1 for _ in logs.glob("torchrun-*.log")) + 1
    (logs / TORCHRUN_LOG).rename(logs / f"torchrun-{count}.log")
