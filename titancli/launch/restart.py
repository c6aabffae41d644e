"""Whether a run that has failed is started again, from which step, and how that is told.

Knows which ends call for it and how many times that was promised. Does not start anything, nor know what a smaller
batch is (again).
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from engine.config import Config
from engine.errors import EXIT_RUN_FAILED, TitanError
from engine.planner.plan import Plan
from engine.sources import Loaded
from titancli.launch.again import Again, with_smaller_batch
from titancli.launch.kept import goes_on_after
from titancli.launch.run_folder import keep_logs, start_over
from titancli.launch.summary import cause_outside
from titancli.launch.supervise import Ending
from titancli.launch.ways_out import FULL_DISK
from titancli.monitor.failure import failures_of
from titancli.monitor.run_state import Failure, is_told_elsewhere

_LONGEST_REASON = 160


class Restarts:
    """How often a launch has started its run again because it failed: `done` times so far.

    `began` is the step that it went on from last.
    """

    def __init__(self, config: Config, run: Path, *, began: int, done: int = 0) -> None:
        self._run, self.began, self.done = run, began, done
        self._most = config.launch.max_restarts

    def after(self, loaded: Loaded, plan: Plan, ending: Ending) -> Again | None:
        """Makes the run folder ready for another attempt; None where there is none and nothing to say about it."""
        if ending.exit_code != EXIT_RUN_FAILED:
            return None
        again = with_smaller_batch(loaded, plan, self._run, ending, began=self.began)
        if again is not None and again.plan is not None:
            self._start_over(again.text, step=goes_on_after(self._run))
            return again
        if not self._most:
            return again
        reason = self._reason_against(ending)
        if reason:
            return Again(text=f"not started again: {reason}", plan=None)
        self.done += 1
        step = goes_on_after(self._run)
        text = f"restart {self.done} of {self._most}: {_cause(self._run, ending)}; {goes_on(step)}"
        self._start_over(text, step=step)
        return Again(text=text, plan=plan)

    def _reason_against(self, ending: Ending) -> str:
        """Why there is not to be another attempt; empty where there is."""
        reason = hopeless(self._run, ending)
        if not reason and self.done >= self._most:
            times = f"{self._most} restart{'s' if self._most != 1 else ''}"
            return f"{times} of launch.max_restarts {'is' if self._most == 1 else 'are'} used up"
        return reason or _reason_to_load_none(self._run)

    def _start_over(self, text: str, *, step: int | None) -> None:
        self.began = step or 0
        keep_logs(self._run)
        start_over(self._run, text, step=step)


def hopeless(run: Path, ending: Ending) -> str:
    """Why another attempt would help nobody; empty where it may."""
    failures = failures_of(run, ending.state)
    if any(failure.type == "NonFiniteStep" for failure in failures):
        return "the same numbers would come again"
    if _is_full(failures) or "R205" in cause_outside(ending, run):
        return "the disk is full"
    return ""


def _reason_to_load_none(run: Path) -> str:
    """Why another attempt could not even begin, as the engine would say then; empty where it can."""
    try:
        goes_on_after(run)
    except TitanError as mistake:
        return "; ".join(finding.message for finding in mistake.findings)
    return ""


def goes_on(step: int | None) -> str:
    """Where a run that is started again begins, in words."""
    return f"goes on after step {step}" if step is not None else "starts at step 1, as no checkpoint is committed"


def _cause(run: Path, ending: Ending) -> str:
    """Which rank failed first and why, or who killed torchrun, in one line."""
    if ending.killed_by is not None:
        return f"torchrun was killed by {ending.killed_by} from outside"
    failures = failures_of(run, ending.state)
    if ending.elsewhere and all(is_told_elsewhere(failure) for failure in failures):
        return ending.elsewhere.splitlines()[0].partition(": ")[2]
    if not failures:
        return "the run failed, and no rank said why"
    first = failures[0]
    message = (first.message.splitlines() or [""])[0]
    return textwrap.shorten(
        f"rank {first.rank} failed first ({f'{first.type}: {message}'.removesuffix(': ')})", _LONGEST_REASON
    )


def _is_full(failures: list[Failure]) -> bool:
    return any(re.search(FULL_DISK, f"{failure.type} {failure.message}", re.IGNORECASE) for failure in failures)
