"""`titan launch`: from a config to a run on this machine, or to a job of a cluster.

Knows the order: the config's own mistakes, the hardware here, what is not built yet, the run
folder, the data, and only then the first process, or what a scheduler is handed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, EXIT_TERMINATED, Finding
from engine.sources import Flag, Loaded, locate
from titancli import report
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.hardware import Machine
    from engine.planner.plan import Plan
    from engine.rules import Report
    from titancli.launch.run_folder import Place
    from titancli.launch.supervise import Ending
    from titancli.launch.torchrun import Command


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

    if options.name is not None:
        flags = (*flags, Flag("job.name", options.name, "--name"))
    if options.scheduler is not None:
        flags = (*flags, Flag("launch.scheduler", options.scheduler, "--scheduler"))
    if options.max_restarts is not None:
        flags = (*flags, Flag("launch.max_restarts", options.max_restarts, "--max-restarts"))
    if options.nnodes is not None:
        flags = (*flags, Flag("cluster.nodes", options.nnodes, "--nnodes"))
    loaded = load_config("launch", path, preset, flags)
    machine = this_machine()
    checked = _judge(loaded, machine)
    report.say_findings(checked.findings)
    if checked.exit_code != EXIT_OK:
        _say_nothing_started(checked)
        return checked.exit_code
    if checked.unbuilt:
        report.say_findings(_unbuilt(loaded, checked))
        return EXIT_CONFIG
    assert checked.plan is not None, "a config without errors has a plan"
    return _start(loaded, checked.plan, machine, options)


def _judge(loaded: Loaded, machine: Machine) -> Report:
    """The report of the rules with what this machine says to it; planned anew for a larger card."""
    from dataclasses import replace

    from engine.rules import check
    from titancli.launch.here import compare

    checked = check(loaded)
    if checked.exit_code == EXIT_CONFIG or loaded.config.launch.scheduler != "local":
        return checked
    if any(finding.rule == "H701" for finding in checked.findings):
        return checked
    here = compare(loaded, machine)
    if here.cluster is not None:
        checked = check(loaded, cluster=here.cluster)
    return replace(checked, findings=(*here.findings, *checked.findings))


def _unbuilt(loaded: Loaded, checked: Report) -> list[Finding]:
    """One finding for each setting that would do something and is not built yet."""
    findings: list[Finding] = []
    for setting in checked.unbuilt:
        file, line, source = locate(loaded.origins, setting.key)
        findings.append(
            Finding(
                rule="R301",
                severity="error",
                key=setting.key,
                message=f"{setting.key} is not built yet, so it cannot be launched",
                fix="leave it at its default to train without it; titan validate plans it as it is",
                file=file,
                line=line,
                source=source,
            )
        )
    return findings


def _say_nothing_started(checked: Report) -> None:
    count = sum(finding.severity == "error" for finding in checked.findings)
    report.say(f"{count} error{'s' if count != 1 else ''}; nothing was started", sys.stderr, tint="bad")


def _start(loaded: Loaded, plan: Plan, machine: Machine, options: Options) -> int:
    from titancli.corpus import read_corpus
    from titancli.launch.run_folder import alone_in, choose, create
    from titancli.launch.torchrun import foreign

    def place_now() -> Place | Path:
        return choose(loaded, resume=options.resume, overwrite=options.overwrite, now_s=time.time())

    place = place_now()
    if isinstance(place, Path):
        return _say_complete(place, loaded)
    if loaded.config.launch.scheduler == "kubernetes":
        from titancli.launch.kubernetes import launch_on_kubernetes

        return launch_on_kubernetes(loaded, plan, place, dry_run=options.dry_run)
    corpus = read_corpus(loaded, plan)
    if loaded.config.launch.scheduler == "slurm":
        from titancli.launch.slurm import launch_on_slurm

        return launch_on_slurm(loaded, plan, place, corpus, dry_run=options.dry_run)
    if options.dry_run:
        report.say(str(_torchrun(place.run, loaded, plan, machine)))
        report.say(f"nothing was started; the command needs {place.run}, which titan launch writes", sys.stderr)
        return EXIT_OK
    ignored = [name for name in foreign(os.environ) if not name.startswith("TITAN_")]
    if ignored:
        report.say(f"not handed to the workers: {', '.join(ignored)} of another launcher", sys.stderr, tint="faint")
    with alone_in(place.run.parent):
        # Another launch may have taken the place while this one read its data.
        place = place_now()
        if isinstance(place, Path):
            return _say_complete(place, loaded)
        torchrun = _torchrun(place.run, loaded, plan, machine)
        aside = create(place, loaded, plan, str(torchrun))
    if aside:
        report.say(f"the old run folder is now {aside}")
    return _run(loaded, plan, place.run, torchrun, corpus)


def _say_complete(run: Path, loaded: Loaded) -> int:
    report.say(f"the run {run} is complete: all {loaded.config.training.steps} steps are done", tint="good")
    return EXIT_OK


def _torchrun(run: Path, loaded: Loaded, plan: Plan, machine: Machine) -> Command:
    from titancli.launch.torchrun import command

    return command(
        run,
        processes=plan.world_size,
        threads=max(1, machine.cpus // plan.world_size),
        grace_s=loaded.config.launch.grace_seconds,
        environ=os.environ,
    )


def _run(loaded: Loaded, plan: Plan, run: Path, torchrun: Command, corpus: str) -> int:
    from dataclasses import replace

    from titancli.launch.again import after
    from titancli.launch.progress import display, quietly_say
    from titancli.launch.supervise import supervise
    from titancli.monitor.follow import Launcher

    steps = loaded.config.training.steps
    model = f"{loaded.config.model.name} {loaded.config.model.flavor}"
    quietly_say(f"{run.name}: {model} on {report.devices(plan.gpu, plan.world_size)}, {report.layout(plan)}")
    quietly_say(f"  {steps} steps of {plan.tokens_per_step:,} tokens; run folder {run}", tint="faint")
    quietly_say(f"  {corpus}", tint="faint")
    try:
        while True:
            ending = supervise(
                torchrun, run, grace_s=loaded.config.launch.grace_seconds, display=lambda: display(steps)
            )
            again = after(loaded, plan, run, ending)
            if again is None or again.plan is None:
                break
            plan = again.plan
    except OSError as trouble:
        message = f"the processes of {run} cannot be started: {(trouble.strerror or str(trouble)).lower()}"
        report.say_findings([report.error("R203", message, "mend that, and launch again")])
        return EXIT_RUN_FAILED
    # Where even this little does not fit the disk any more, the events still tell how the run ended.
    with contextlib.suppress(OSError):
        replace(Launcher.this_process(), exit_code=ending.exit_code).write(run)
    if again is not None:
        quietly_say(again.text)
    say_ending(ending, plan, run, steps)
    return ending.exit_code


def say_ending(ending: Ending, plan: Plan, run: Path, steps: int) -> None:
    """Says how a run went, or on stderr which rank failed first and why."""
    from titancli.launch.progress import quietly_say
    from titancli.launch.summary import cause_outside, failure_text, summary
    from titancli.monitor.failure import failures_of
    from titancli.rank_logs import TORCHRUN_LOG, text_of

    if ending.exit_code in (EXIT_OK, EXIT_INTERRUPTED, EXIT_TERMINATED):
        quietly_say(summary(ending, plan, run, steps=steps))
        return
    tail = "\n".join(text_of(run / "logs" / TORCHRUN_LOG, 4096).splitlines()[-10:])
    failures, outside = failures_of(run, ending.state), cause_outside(ending, run)
    try:
        report.say(failure_text(failures, run, torchrun_tail=tail, outside=outside), sys.stderr, tint="bad")
    except OSError:
        report.lose(sys.stderr)
