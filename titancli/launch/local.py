"""A launch on this machine: what is looked at before, the run folder that it takes, and then the run.

Knows the order. Does not know rules and hardware, which were looked at before (`titan launch`).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoint.committed import Checkpoints
from engine.errors import EXIT_OK, TitanError
from engine.hardware import Machine
from engine.planner.plan import Plan
from engine.rules import check
from engine.settled import with_settled
from engine.sources import Loaded
from titancli import report
from titancli.disk import look_at_disk, room_finding
from titancli.launch.detach import detach
from titancli.launch.lease import Lease, take, wait_for_the_last
from titancli.launch.run_folder import Place, alone_in, choose, create
from titancli.launch.start import Ready, say_beginning, train
from titancli.launch.torchrun import Command, command, foreign
from titancli.resume import look_at_start

if TYPE_CHECKING:
    from titancli.launch import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """One launch: what was asked for, what was planned for it, and the machine that it is on."""

    loaded: Loaded
    plan: Plan
    machine: Machine
    options: Options
    corpus: str

    def place(self) -> Place | Path:
        """Where it may stand now, or the folder of the same run where that is complete."""
        return choose(self.loaded, resume=self.options.resume, overwrite=self.options.overwrite, now_s=time.time())

    def torchrun(self, run: Path) -> Command:
        """What starts its workers."""
        return command(
            run,
            processes=self.plan.world_size,
            threads=max(1, self.machine.cpus // self.plan.world_size),
            grace_s=self.loaded.config.launch.grace_seconds,
            environ=os.environ,
        )


def launch_here(here: Here, place: Place) -> int:
    """Trains in a folder that was free a moment ago; returns the exit code."""
    if here.options.dry_run:
        report.say(str(here.torchrun(place.run)))
        report.say(f"nothing was started; the command needs {place.run}, which titan launch writes", sys.stderr)
        return EXIT_OK
    ignored = [name for name in foreign(os.environ) if not name.startswith("TITAN_")]
    if ignored:
        report.say(f"not handed to the workers: {', '.join(ignored)} of another launcher", sys.stderr, tint="faint")
    if place.taken or place.resumed is not None:
        wait_for_the_last(place.run)
    taken = _take(here, place.run.parent)
    if isinstance(taken, Path):
        return say_complete(taken, here.loaded)
    ready, lease = taken
    if here.options.detach:
        say_beginning(ready, here.loaded, here.plan)
        return detach(ready, lease, processes=here.plan.world_size)
    return train(ready, here.loaded, here.plan, lease)


def _take(here: Here, runs: Path) -> tuple[Ready, Lease] | Path:
    """Makes a run folder this launch's own; or the folder of the same run, where another has completed it since."""
    with alone_in(runs):
        # Another launch may have taken the place while this one read its data.
        place = here.place()
        if isinstance(place, Path):
            return place
        torchrun, resumed = here.torchrun(place.run), place.resumed
        if resumed is None:
            aside = create(place, here.loaded, here.plan, str(torchrun))
            if aside:
                report.say(f"the old run folder is now {aside}")
            return Ready(run=place.run, torchrun=torchrun, corpus=here.corpus), take(place.run, None)
        lease = take(place.run, resumed.launcher)
        create(place, here.loaded, here.plan, str(torchrun))
    if resumed.changed:
        report.say(f"other than at its last launch: {resumed.changed}")
    goes_on = resumed.text(here.loaded.config.training.steps)
    began = resumed.start.step or 0
    return Ready(run=place.run, torchrun=torchrun, corpus=here.corpus, goes_on=goes_on, began=began), lease


def look_at_checkpoints(loaded: Loaded, plan: Plan, place: Place) -> None:
    """Says what is doubtful about the checkpoints of a run; TitanError where it cannot begin, or the disk is too small.

    Those of a run that is moved aside stay on the disk, and are not the new one's.
    """
    findings, start = look_at_start(loaded) if not place.taken else ([], None)
    if loaded.config.checkpoint.enable:
        own = start.own if start is not None else Checkpoints(folder=place.run / loaded.config.checkpoint.folder)
        disk = look_at_disk(loaded, plan, own)
        if not disk.has_room:
            findings = [*findings, room_finding(loaded, disk, severity="error")]
    wrong = [finding for finding in findings if finding.severity == "error"]
    report.say_findings(finding for finding in findings if finding.severity == "warning")
    if wrong:
        raise TitanError(*wrong)


def as_it_was(loaded: Loaded, plan: Plan, place: Place) -> Plan:
    """The plan of a run that goes on with the smaller batch which its memory had called for."""
    if place.resumed is None or not place.resumed.settled:
        return plan
    smaller = check(with_settled(loaded, place.resumed.settled)).plan
    return smaller or plan


def say_complete(run: Path, loaded: Loaded) -> int:
    """Says that nothing is left to do."""
    report.say(f"the run {run} is complete: all {loaded.config.training.steps} steps are done", tint="good")
    return EXIT_OK
