"""A run on this machine, from its first process to its last word, over as many attempts as it was promised.

Knows the order: start, watch, start again or end, and say how it went. Does not know what was checked before
(`titan launch`), nor whether a person is at the terminal (detach).
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import EXIT_OK, EXIT_RUN_FAILED
from engine.planner.plan import Plan
from engine.sources import Loaded
from titancli import report
from titancli.launch.concerted import Concerted
from titancli.launch.lease import Lease
from titancli.launch.peers import Peers
from titancli.launch.preflight import MOST_S, preflight
from titancli.launch.processes import adopt_orphans
from titancli.launch.progress import display, quietly_say
from titancli.launch.ranks import place_ranks
from titancli.launch.restart import Restarts
from titancli.launch.summary import STOPPED_WELL, cause_outside, failure_text, part_summary, summary
from titancli.launch.supervise import Ending, Signals, supervise
from titancli.launch.torchrun import Command
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower, Launcher
from titancli.rank_logs import text_of, torchrun_logs

# A preflight is promised to end within a minute, and a run may be silent for longer.
_PREFLIGHT_SILENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run whose folder is made: what is started, and what is said before.

    `goes_on` is where an earlier launch of it is gone on with, and `began` the step; `corpus` what it reads. `node` is
    the number of this machine where the run is on several; `joins`: the folder is the launcher's of another of them.
    `aside` is where the folder that stood there is now. `preflight`: every GPU and link is measured first.
    `rows` says of each rank on which of several machines and GPUs it is.
    """

    run: Path
    torchrun: Command
    corpus: str
    goes_on: str = ""
    began: int = 0
    node: int | None = None
    joins: bool = False
    aside: str = ""
    preflight: bool = False
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def tells_steps(self) -> bool:
        """Whether what rank 0 tells is written into this folder, and not on the disk of another machine."""
        return self.joins or not self.node


def train(ready: Ready, loaded: Loaded, plan: Plan, lease: Lease | None, peers: Peers | None = None) -> int:
    """Runs it to its end; returns the exit code.

    Without a lease the folder is another launcher's; `peers` are those of the other machines.
    """
    run, config = ready.run, loaded.config
    say_beginning(ready, loaded, plan)
    adopt_orphans()
    restarts = Restarts(config, run, began=ready.began)
    began_s, all_attempts = time.monotonic(), Follower(run, from_now=True)
    try:
        with lease.kept() if lease is not None else contextlib.nullcontext(), Signals() as signals:
            if ready.preflight and (code := _measured(ready, signals, peers)) != EXIT_OK:
                _keep_exit_code(ready, code)
                return code
            ending, plan = _attempts(ready, loaded, plan, restarts, signals, peers)
    except OSError as trouble:
        message = f"the processes of {run} cannot be started: {(trouble.strerror or str(trouble)).lower()}"
        report.say_findings([report.error("R203", message, "mend that, and launch again")])
        return EXIT_RUN_FAILED
    finally:
        if peers is not None:
            peers.close()
    _keep_exit_code(ready, ending.exit_code)
    ending = replace(ending, seconds=time.monotonic() - began_s)
    if ending.exit_code != EXIT_RUN_FAILED:
        ending = replace(ending, state=all_attempts.read())
    if ready.tells_steps or ending.exit_code not in STOPPED_WELL:
        say_ending(ending, plan, run, config.training.steps)
    else:
        quietly_say(part_summary(ending, run))
    return ending.exit_code


def _attempts(
    ready: Ready, loaded: Loaded, plan: Plan, restarts: Restarts, signals: Signals, peers: Peers | None
) -> tuple[Ending, Plan]:
    """How the last attempt ended, and what was planned for it."""
    config = loaded.config
    while True:
        ending = supervise(
            ready.torchrun,
            ready.run,
            grace_s=config.launch.grace_seconds,
            display=lambda: display(config.training.steps, tells_steps=ready.tells_steps),
            signals=signals,
            node=ready.node,
            others=peers,
        )
        if peers is None:
            again = None if signals.has_any else restarts.after(loaded, plan, ending)
        else:
            all_of_them = Concerted(run=ready.run, restarts=restarts, peers=peers, joins=ready.joins)
            was_asked = signals.has_any
            ending = all_of_them.settle(ending, grace_s=config.launch.grace_seconds, was_asked=was_asked)
            again = None if was_asked else all_of_them.after(loaded, plan, ending)
        if again is not None:
            quietly_say(again.text)
        if again is None or again.plan is None:
            return ending, plan
        plan = again.plan


def _measured(ready: Ready, signals: Signals, peers: Peers | None) -> int:
    """The exit code of a preflight, which is machine 0's where there are several."""
    if peers is None:
        return preflight(ready.run, ready.torchrun, signals, node=ready.node)
    with peers.minded(_PREFLIGHT_SILENCE_S):
        code = preflight(ready.run, ready.torchrun, signals, node=ready.node, others=peers)
        if signals.has_any:
            peers.leave(code)
            return code
        return peers.same(code, within_s=MOST_S)


def _keep_exit_code(ready: Ready, code: int) -> None:
    if not ready.joins:
        # Where even this little does not fit the disk any more, the events still tell how the run ended.
        with contextlib.suppress(OSError):
            replace(Launcher.this_process(), exit_code=code).write(ready.run)


def say_beginning(ready: Ready, loaded: Loaded, plan: Plan) -> None:
    """What is going to run, on what, where, and from which text."""
    model = f"{loaded.config.model.name} {loaded.config.model.flavor}"
    quietly_say(f"{ready.run.name}: {model} on {report.devices(plan.gpu, plan.world_size)}, {report.layout(plan)}")
    steps = f"{loaded.config.training.steps} steps of {plan.tokens_per_step:,} tokens"
    quietly_say(f"  {steps}; run folder {ready.run}", tint="faint")
    quietly_say(f"  {ready.corpus}", tint="faint")
    nodes = loaded.config.cluster.nodes
    for line in place_ranks(ready.run, plan, node=ready.node or 0, nodes=nodes, told=ready.rows):
        quietly_say(f"  {line}", tint="faint")
    if ready.goes_on:
        quietly_say(f"  {ready.goes_on}")


def say_ending(ending: Ending, plan: Plan, run: Path, steps: int, *, goes_on: bool = False) -> None:
    """Says how a run went, or on stderr which rank failed first and why; `goes_on`: by itself, if it was stopped."""
    if ending.exit_code in STOPPED_WELL:
        quietly_say(summary(ending, plan, run, steps=steps, goes_on=goes_on))
        return
    tail = "\n".join("\n".join(text_of(log, 4096) for log in torchrun_logs(run)).splitlines()[-10:])
    failures, outside = failures_of(run, ending.state), cause_outside(ending, run)
    try:
        text = failure_text(failures, run, torchrun_tail=tail, outside=outside, ranks=ending.state.ranks, plan=plan)
        report.say(text, sys.stderr, tint="bad")
    except OSError:
        report.lose(sys.stderr)
