"""A launch on this machine: what is looked at before, the run folder that it takes, and then the run.

Knows the order. Does not know rules and hardware, which were looked at before (`titan launch`).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoint.beginning import checkpoints_of
from engine.checkpoint.committed import Checkpoints
from engine.checkpoint.places import is_remote
from engine.errors import EXIT_OK, Finding, TitanError
from engine.hardware import Machine
from engine.planner.plan import Plan
from engine.rules import check
from engine.settled import read_settled, with_settled
from engine.sources import Loaded, locate
from titancli import report
from titancli.disk import look_at_disk, room_finding
from titancli.launch.detach import detach
from titancli.launch.lease import Lease, lock, take, wait_for_the_last
from titancli.launch.meeting_place import check_place
from titancli.launch.network import interface_to
from titancli.launch.ranks import rows_of_this_machine
from titancli.launch.roll_call import NotMet, card_of
from titancli.launch.run_folder import Place, alone_in, choose, create
from titancli.launch.start import Ready, say_beginning, train
from titancli.launch.taken import completed
from titancli.launch.together import meet
from titancli.launch.torchrun import Command, command, foreign
from titancli.monitor.follow import LAUNCHER_FILE, folder_of_runs
from titancli.resume import Start, look_at_start

if TYPE_CHECKING:
    from titancli.launch import Options
    from titancli.launch.meeting import Meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """One launch: what was asked for, what was planned for it, and the machine that it is on."""

    loaded: Loaded
    plan: Plan
    machine: Machine
    options: Options
    corpus: str
    meeting: Meeting | None = None

    def place(self) -> Place | Path:
        """Where it may stand now, or the folder of the same run where that is complete."""
        return choose(self.loaded, resume=self.options.resume, overwrite=self.options.overwrite, now_s=time.time())

    def torchrun(self, run: Path) -> Command:
        """What starts its workers."""
        processes = self.processes
        return command(
            run,
            processes=processes,
            threads=max(1, self.machine.cpus // processes),
            grace_s=self.loaded.config.launch.grace_seconds,
            environ=os.environ,
            meeting=self.meeting,
            timeout_s=self.loaded.config.comm.init_timeout_seconds,
        )

    def ready(self, run: Path) -> Ready:
        """What is started in a folder."""
        return Ready(
            run=run,
            torchrun=self.torchrun(run),
            corpus=self.corpus,
            node=self.node,
            preflight=self.options.preflight,
        )

    @property
    def processes(self) -> int:
        """How many of the run's processes are this machine's."""
        return self.plan.world_size // (1 if self.meeting is None else self.meeting.nodes)

    @property
    def node(self) -> int | None:
        """This machine's number, where the run is on several."""
        return None if self.meeting is None or self.meeting.nodes == 1 else self.meeting.rank


def launch_here(here: Here, place: Place) -> int:
    """Trains in a folder that was free a moment ago; returns the exit code."""
    if here.options.dry_run:
        return _say_what_would_run(here, place.run)
    _say_ignored()
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
        # What is there already is this launch's from here on; what is not, once it is made.
        old = _hold(place)
        made = create(place, here.loaded, here.plan, str(here.torchrun(place.run))) if old is None else ""
        lease = take(place.run, None) if old is None else old
    if old is not None:
        place, made, lease = _follow(here, place, old)
    if made:
        report.say(f"the old run folder is now {made}")
    ready = replace(here.ready(place.run), aside=made)
    if place.resumed is None:
        return ready, lease
    if place.resumed.changed:
        report.say(f"other than at its last launch: {place.resumed.changed}")
    goes_on = place.resumed.text(here.loaded.config.training.steps)
    return replace(ready, goes_on=goes_on, began=place.resumed.start.step or 0), lease


def _hold(place: Place) -> Lease | None:
    """The right to a folder that an earlier launch has left; None where none has."""
    if place.resumed is not None:
        return take(place.run, place.resumed.launcher)
    return lock(place.run) if place.taken and os.path.isfile(place.run / LAUNCHER_FILE) else None


def _follow(here: Here, place: Place, old: Lease) -> tuple[Place, str, Lease]:
    """Takes over from an earlier launch once its last process is gone, which may have saved once more until then.

    The place with what is there now, where its folder was moved to, and the lease.
    """
    try:
        wait_for_the_last(place.run)
    except TitanError:
        if place.resumed is not None and place.resumed.launcher is not None:
            place.resumed.launcher.write(place.run)
        raise
    if place.resumed is not None:
        _, start = look_at_start(here.loaded)
        place = replace(place, resumed=replace(place.resumed, start=start))
    aside = create(place, here.loaded, here.plan, str(here.torchrun(place.run)))
    if place.resumed is not None:
        return place, aside, old
    lease = take(place.run, None)
    old.close()
    return place, aside, lease


def launch_with_others(here: Here, meeting: Meeting, *, planned: Plan) -> int:
    """Trains together with the other machines that this is called on; returns the exit code.

    `planned` is what the config alone comes to: only machine 0 knows of a smaller batch that the run has come to since.
    """
    options, config = here.options, here.loaded.config
    if options.dry_run:
        addresses = check_place(meeting)
        here = replace(here, meeting=replace(meeting, interface=interface_to(addresses, meeting.port)))
        return _say_what_would_run(here, folder_of_runs(config.job.dump_folder) / config.job.name)
    _say_ignored()
    rows = rows_of_this_machine(planned, node=meeting.rank, nodes=meeting.nodes)
    card = card_of(meeting, here.loaded, planned, resume=options.resume, overwrite=options.overwrite, rows=rows)
    try:
        met = meet(
            meeting, card, config, make=lambda met: _make(here, met), join=lambda met, run: _join(here, met, run)
        )
    except NotMet as failed:
        report.say_findings([failed.finding])
        return failed.exit_code
    if isinstance(met, Path):
        return say_complete(met, here.loaded)
    plan = check(with_settled(here.loaded, read_settled(met.ready.run))).plan or here.plan
    if not options.detach:
        return train(met.ready, here.loaded, plan, met.lease, met.peers)
    say_beginning(met.ready, here.loaded, plan)
    local = plan.world_size // meeting.nodes
    return detach(
        met.ready, met.lease, processes=local if met.ready.node and met.lease else plan.world_size, peers=met.peers
    )


def _make(here: Here, meeting: Meeting) -> tuple[Ready, Lease] | Path:
    here = replace(here, meeting=meeting)
    place = here.place()
    if isinstance(place, Path):
        return place
    return _take(here, place.run.parent)


def _join(here: Here, meeting: Meeting, run: Path) -> Ready:
    here = replace(here, meeting=meeting)
    return replace(here.ready(run), joins=True)


def _say_what_would_run(here: Here, run: Path) -> int:
    report.say(str(here.torchrun(run)))
    report.say(f"nothing was started; the command needs {run}, which titan launch writes", sys.stderr)
    return EXIT_OK


def _say_ignored() -> None:
    ignored = [name for name in foreign(os.environ) if not name.startswith("TITAN_")]
    if ignored:
        report.say(f"not handed to the workers: {', '.join(ignored)} of another launcher", sys.stderr, tint="faint")


def look_at_checkpoints(loaded: Loaded, plan: Plan, place: Place) -> None:
    """Says what is doubtful about the checkpoints of a run; TitanError where it cannot begin, or the disk is too small.

    Those of a run that is moved aside stay on the disk, and are not the new one's.
    """
    findings, start = look_at_start(loaded, plan, starts_here=loaded.config.launch.scheduler == "local")
    own = start.standing
    if start.is_reached and place.taken and _is_within(folder := checkpoints_of(loaded.config, place.run), place.run):
        findings, own = [], Checkpoints(folder=folder)
    elif place.resumed is None and start.step is not None:
        findings = [*findings, _not_its_own(loaded, place, start)]
    if loaded.config.checkpoint.enable and start.is_reached:
        disk = look_at_disk(loaded, plan, own)
        if not disk.has_room:
            findings = [*findings, room_finding(loaded, disk, severity="error")]
    wrong = [finding for finding in findings if finding.severity == "error"]
    report.say_findings(finding for finding in findings if finding.severity == "warning")
    if wrong:
        raise TitanError(*wrong)


def _is_within(folder: Path, run: Path) -> bool:
    return not is_remote(folder) and Path(os.path.normpath(folder)).is_relative_to(os.path.normpath(run))


def _not_its_own(loaded: Loaded, place: Place, start: Start) -> Finding:
    """What is said of checkpoints that stand outside of the folder of a run that is new: it would go on from them."""
    file, line, source = locate(loaded.origins, "checkpoint.folder")
    where = f"{start.own.folder}, which is not in its folder, holds checkpoints up to step {start.step}"
    fix = "set checkpoint.folder to a place of this run alone, which starts it at step 1"
    finding = Finding(
        rule="R108",
        severity="warning",
        key="checkpoint.folder",
        message=f"the new run {place.run.name} goes on after step {start.step}: {where}",
        fix=fix,
        file=file,
        line=line,
        source=source,
    )
    if not place.taken:
        return finding
    message = f"--overwrite starts {place.run.name} anew, and it would go on after step {start.step}: {where}"
    return replace(finding, severity="error", message=message)


def as_it_was(loaded: Loaded, plan: Plan, place: Place) -> Plan:
    """The plan of a run that goes on with the smaller batch which its memory had called for."""
    if place.resumed is None or not place.resumed.settled:
        return plan
    smaller = check(with_settled(loaded, place.resumed.settled)).plan
    return smaller or plan


def say_complete(run: Path, loaded: Loaded) -> int:
    """Says that nothing is left to do, and which part of another config is for nothing then."""
    text, in_vain = completed(loaded, run)
    report.say(text, tint="good")
    if in_vain:
        report.say(in_vain, sys.stderr)
    return EXIT_OK
