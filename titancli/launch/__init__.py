"""`titan launch`: from a config to a run on this machine, or to a job of a cluster.

Knows the order: the config's own mistakes, the hardware here, the run
folder, the data, and only then the first process, or what a scheduler is handed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EXIT_CONFIG, EXIT_OK, Finding, TitanError
from engine.sources import Flag, Loaded
from titancli import report
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.hardware import Machine
    from engine.planner.plan import Plan
    from engine.rules import Report
    from titancli.launch.local import Here
    from titancli.launch.meeting import Meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Flags of `titan launch` beside those of the config."""

    name: str | None = None
    scheduler: str | None = None
    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False
    detach: bool = False
    preflight: bool = False
    max_restarts: str | None = None
    nnodes: str | None = None
    node_rank: str | None = None
    rdzv_endpoint: str | None = None


def launch(path: str | None, preset: str | None, flags: Sequence[Flag], options: Options) -> int:
    """Launches, or says why not; returns the exit code. TitanError where the run folder or the data cannot be had."""
    from engine.hardware import this_machine
    from titancli.launch.combinations import require_config

    require_config(path, preset, flags, options)
    if options.name is not None:
        flags = (*flags, Flag("job.name", options.name, "--name"))
    if options.scheduler is not None:
        flags = (*flags, Flag("launch.scheduler", options.scheduler, "--scheduler"))
    if options.max_restarts is not None:
        flags = (*flags, Flag("launch.max_restarts", options.max_restarts, "--max-restarts"))
    if options.nnodes is not None:
        flags = (*flags, Flag("cluster.nodes", options.nnodes, "--nnodes"))
    loaded = load_config("launch", path, preset, flags)
    meeting, wrong = _meeting(options, loaded)
    machine = this_machine()
    checked = _judge(loaded, machine, options, meeting)
    checked = replace(checked, findings=(*wrong, *checked.findings))
    report.say_findings(checked.findings)
    if checked.exit_code != EXIT_OK:
        _say_nothing_started(checked)
        own = [finding for finding in checked.findings if finding.severity == "error" and finding.rule.startswith("H8")]
        if own and meeting is not None:
            _tell_others(loaded, meeting, options, TitanError(*own))
        return checked.exit_code
    assert checked.plan is not None, "a config without errors has a plan"
    return _start(loaded, checked.plan, machine, options, meeting)


def _meeting(options: Options, loaded: Loaded) -> tuple[Meeting | None, tuple[Finding, ...]]:
    """The machines that the flags tell of, and all that is wrong with flags whatever the config is."""
    from titancli.launch.combinations import require_combination
    from titancli.launch.meeting import meeting_of

    wrong: list[Finding] = []
    meeting = None
    try:
        require_combination(options, loaded.config.launch.scheduler)
    except TitanError as mistakes:
        wrong += mistakes.findings
    try:
        meeting = meeting_of(options, loaded)
    except TitanError as mistakes:
        wrong += mistakes.findings
    return meeting, tuple(wrong)


def _judge(loaded: Loaded, machine: Machine, options: Options, meeting: Meeting | None) -> Report:
    """The report of the rules with what this machine says to it; planned anew for a larger card."""
    from engine.rules import check
    from titancli.launch.here import compare
    from titancli.launch.obstacles import node_here, obstacles
    from titancli.packages import look_for_packages

    checked = check(loaded)
    if checked.exit_code == EXIT_CONFIG:
        return checked
    if loaded.config.launch.scheduler != "local":
        # Jobs of Slurm run this Python; what is in a container's image cannot be seen from here.
        slurm = loaded.config.launch.scheduler == "slurm"
        return checked.joined(look_for_packages(loaded, starts_here=False)) if slurm else checked
    if any(finding.rule == "H701" for finding in checked.findings):
        return checked
    # Flags that name a node tell of several, whatever else is wrong with them.
    here = compare(loaded, machine, meets=any((options.nnodes, options.node_rank, options.rdzv_endpoint)))
    if here.cluster is not None:
        checked = check(loaded, cluster=here.cluster)
    found = list(here.findings)
    if checked.plan is not None:
        number = 0 if meeting is None else meeting.rank
        found += obstacles(loaded, checked.plan, node_here(machine, loaded.config.job.dump_folder, number))
        # Rank 0 alone feeds them.
        found += look_for_packages(loaded, starts_here=True) if number == 0 else []
    return replace(checked, findings=(*found, *checked.findings))


def _say_nothing_started(checked: Report) -> None:
    count = sum(finding.severity == "error" for finding in checked.findings)
    report.say(f"{count} error{'s' if count != 1 else ''}; nothing was started", sys.stderr, tint="bad")


def _start(loaded: Loaded, plan: Plan, machine: Machine, options: Options, meeting: Meeting | None) -> int:
    from titancli.launch.local import Here, as_it_was, launch_here, look_at_checkpoints, say_complete
    from titancli.launch.meeting_place import look_at_place
    from titancli.launch.run_folder import choose
    from titancli.whole_corpus import read_corpus

    if meeting is not None:
        look_at_place(meeting, starts=not options.dry_run)
    here = Here(loaded=loaded, plan=plan, machine=machine, options=options, corpus="", meeting=meeting)
    if meeting is not None and meeting.nodes > 1:
        return _with_others(here, meeting)
    if loaded.config.launch.scheduler == "kubernetes":
        return _on_kubernetes(loaded, plan, options)
    place = choose(loaded, resume=options.resume, overwrite=options.overwrite, now_s=time.time())
    if isinstance(place, Path):
        return say_complete(place, loaded)
    look_at_checkpoints(loaded, plan, place)
    plan = as_it_was(loaded, plan, place)
    # A job prepares a large corpus where it runs; what only says what would run prepares nothing.
    starts_here = loaded.config.launch.scheduler == "local" and not options.dry_run
    corpus = read_corpus(loaded, plan, prepares=starts_here)
    if loaded.config.launch.scheduler == "slurm":
        from titancli.launch.slurm import launch_on_slurm

        return launch_on_slurm(loaded, plan, place, corpus, preflight=options.preflight, dry_run=options.dry_run)
    return launch_here(replace(here, plan=plan, corpus=corpus), place)


def _with_others(here: Here, meeting: Meeting) -> int:
    """As one of several machines."""
    from titancli.launch.local import launch_with_others
    from titancli.whole_corpus import read_corpus

    planned = here.plan
    if not meeting.is_head:
        # Whether the run folder is this machine's to judge is known only when machine 0 has been met.
        corpus = read_corpus(here.loaded, planned, prepares=not here.options.dry_run)
        return launch_with_others(replace(here, corpus=corpus), meeting, planned=planned)
    try:
        ready = _looked_at(here)
    except TitanError as mistakes:
        report.say_findings(mistakes.findings)
        _tell_others(here.loaded, meeting, here.options, mistakes)
        return mistakes.exit_code
    return launch_with_others(ready, meeting, planned=planned)


def _looked_at(here: Here) -> Here:
    """Machine 0's launch once its run folder, its checkpoints and its data are found well."""
    from titancli.launch.local import as_it_was, look_at_checkpoints
    from titancli.whole_corpus import read_corpus

    place = here.place()
    if isinstance(place, Path):
        return here
    look_at_checkpoints(here.loaded, here.plan, place)
    plan = as_it_was(here.loaded, here.plan, place)
    return replace(here, plan=plan, corpus=read_corpus(here.loaded, plan, prepares=not here.options.dry_run))


def _tell_others(loaded: Loaded, meeting: Meeting, options: Options, mistake: TitanError) -> None:
    """Tells the machines that wait for this one that it does not come, and why."""
    from titancli.launch.together import tell_why_not

    if meeting.is_head and meeting.nodes > 1 and not options.dry_run:
        tell_why_not(meeting, loaded.config, mistake)


def _on_kubernetes(loaded: Loaded, plan: Plan, options: Options) -> int:
    from titancli.launch.kubernetes import launch_on_kubernetes, place_of
    from titancli.launch.local import say_complete

    place = place_of(loaded, options)
    return (
        say_complete(place, loaded) if isinstance(place, Path) else launch_on_kubernetes(loaded, plan, place, options)
    )
