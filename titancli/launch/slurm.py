"""The batch script of a run, and its way into Slurm's queue.

Knows which options a config makes of itself, and which of them `launch.slurm.extra` replaces. Does not know how a job
is submitted (slurm_job), nor what the script does (templates/slurm.sbatch).
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.config import Config
from engine.errors import EXIT_OK, TitanError
from engine.hardware import GPUS
from engine.planner.plan import Plan
from engine.preflight.judging import FILE as VERDICT
from engine.rules.jobs import fits_a_script, option_name
from engine.sources import Loaded
from titancli import report
from titancli.launch.answers import Stopped
from titancli.launch.ended import EXIT_RESTART, EXIT_SMALLER
from titancli.launch.preflight import FOLDER as PREFLIGHT
from titancli.launch.preflight import preflight_words
from titancli.launch.requeue import goes_back
from titancli.launch.run_folder import Place, alone_in, choose, create, withdraw
from titancli.launch.slurm_job import FILE, Job, require_sbatch, submit, words
from titancli.launch.summary import named
from titancli.launch.template import filled
from titancli.launch.torchrun import FOREIGN, FOREIGN_PREFIXES, environment_of_workers, in_lines, torchrun_words

SCRIPT = "job.sbatch"
# More than compiling and reading ahead keep busy, and less than the share of a GPU in any node that is sold.
_CPUS_OF_A_GPU = 8
_MOST_PATIENCE_S = 30
# An option of these asks for the same thing in another way.
_INSTEAD = {
    "gres": "gpus-per-node",
    "gpus": "gpus-per-node",
    "gpus-per-task": "gpus-per-node",
    "exclusive": "cpus-per-task",
    "cpus-per-gpu": "cpus-per-task",
    "mem-per-cpu": "mem",
    "mem-per-gpu": "mem",
    "no-requeue": "requeue",
}


def launch_on_slurm(loaded: Loaded, plan: Plan, place: Place, corpus: str, *, preflight: bool, dry_run: bool) -> int:
    """Submits a run, or prints its script; returns the exit code. TitanError where it cannot be submitted."""
    _require_plain_paths(place.run)
    _say_what_goes_before(os.environ)
    command = shlex.join(words(_path(place.run)))
    if dry_run:
        report.say(script(place.run, loaded.config, plan, preflight=preflight).removesuffix("\n"))
        report.say(f"nothing was submitted; titan launch writes this script and runs: {command}", sys.stderr)
        return EXIT_OK
    require_sbatch()
    try:
        job, place, aside = _submitted(loaded, plan, place, preflight=preflight)
    except Stopped as stopped:
        return stopped.exit_code
    if aside:
        report.say(f"the old run folder is now {aside}")
    where = f"{_nodes(loaded.config.cluster.nodes)}, {report.devices(plan.gpu, plan.world_size)}"
    report.say(f"{place.run.name}: job {job.id} of Slurm on {where}, {report.layout(plan)}")
    report.say(f"  {corpus}", tint="faint")
    report.say(f"  run folder {place.run}, which every node has to see", tint="faint")
    if place.resumed is not None:
        if place.resumed.changed:
            report.say(f"  other than at its last launch: {place.resumed.changed}")
        report.say(f"  {place.resumed.text(loaded.config.training.steps)}")
    if goes_back(loaded.config):
        report.say("  preempted or out of time it saves, and the job goes back into the queue", tint="faint")
    cluster, number = job.named().rpartition(" ")[::2]
    squeue = f"{cluster} -j {number}".strip()
    report.say(f"next: squeue {squeue}; titan monitor {named(place.run)}; scancel {job.named()} ends it")
    return EXIT_OK


def _submitted(loaded: Loaded, plan: Plan, place: Place, *, preflight: bool) -> tuple[Job, Place, str]:
    """The job of a run, where that stands, and where a folder that stood there was moved to."""
    resume = place.resumed is not None
    with alone_in(place.run.parent):
        # Another launch may have taken the place while this one read its data.
        again = choose(loaded, resume=resume, overwrite=place.taken, now_s=time.time())
        place = again if isinstance(again, Place) else place
        text = script(place.run, loaded.config, plan, preflight=preflight)
        aside = create(place, loaded, plan, shlex.join(words(_path(place.run))), files={SCRIPT: text})
        try:
            job = submit(_path(place.run), place.run.name)
        except BaseException:
            if not resume:
                withdraw(place.run, aside)
            raise
        _keep(job, place.run)
    return job, place, aside


def _require_plain_paths(run: Path) -> None:
    """TitanError where the script's own lines cannot carry the folder that the command is called in."""
    for folder in (os.getcwd(), str(run.absolute())):
        if not fits_a_script(folder):
            message = (
                f"Slurm's options cannot carry the path {folder!r}: it has a %, a backslash or a control character"
            )
            raise TitanError(report.error("U195", message, "launch from another folder, into another job.dump_folder"))


def _say_what_goes_before(environ: Mapping[str, str]) -> None:
    """Names the variables that sbatch takes for options, as it heeds them before the script's own."""
    found = sorted(name for name in environ if name.startswith("SBATCH_"))
    if found:
        report.say(f"before the options of the script, sbatch heeds {', '.join(found)}", sys.stderr, tint="faint")


def _keep(job: Job, run: Path) -> None:
    """Writes the job down; TitanError where the disk does not take it: it is in the queue all the same."""
    try:
        job.write(run)
    except OSError as trouble:
        message = f"job {job.id} of Slurm cannot be noted in {run}: {(trouble.strerror or str(trouble)).lower()}"
        fix = f"end it with scancel {job.named()}, make room, and launch again"
        raise TitanError(report.error("U196", message, fix, key="job.dump_folder")) from trouble


def script(run: Path, config: Config, plan: Plan, *, preflight: bool = False) -> str:
    """The batch script of a run."""
    gpus = report.devices(plan.gpu, plan.world_size)
    per_node = plan.world_size // config.cluster.nodes
    variables = environment_of_workers(config.launch.grace_seconds)
    torchrun = _torchrun(config.cluster.nodes, per_node)
    return filled(
        "slurm.sbatch",
        {
            "what": f"{run.name}: {config.model.name} {config.model.flavor} on {gpus}, {_nodes(config.cluster.nodes)}",
            "submit": shlex.join(words(_path(run))),
            "options": [f"#SBATCH {option}" for option in options(run, config, plan)],
            "run": shlex.quote(str(run.absolute())),
            "python": shlex.quote(sys.executable),
            "kept": FILE,
            "nodes": str(config.cluster.nodes),
            "processes": str(per_node),
            "foreign": " ".join((*sorted(FOREIGN), *(f"${{!{prefix}@}}" for prefix in FOREIGN_PREFIXES))),
            "environment": [f"export {name}={value}" for name, value in variables.items()],
            "again": filled("goes_on.sh" if config.checkpoint.enable else "anew.sh", {}).splitlines(),
            "patience": str(_patience_s(config)),
            "restart": str(EXIT_RESTART),
            "smaller": str(EXIT_SMALLER),
            "preflight": list(_preflight(config, torchrun)) if preflight else [],
            "torchrun": _lines(torchrun),
        },
    )


def _torchrun(nodes: int, processes: int) -> tuple[str, ...]:
    """torchrun for the shell of the script: paths and the meeting place are variables of that."""
    meeting = ("--rdzv-backend=c10d", '--rdzv-endpoint="$head:$port"', '--rdzv-id="$SLURM_JOB_ID"')
    return torchrun_words("$python", "$run", nodes=nodes, processes=processes, meeting=meeting)


def _preflight(config: Config, torchrun: tuple[str, ...]) -> Iterator[str]:
    """What goes before the run in its job, in lines of the script."""
    values = {"verdict": VERDICT, "logs": f"{PREFLIGHT}/logs", "patience": str(_patience_s(config))}
    yield from filled("preflight.sh", values | {"torchrun": _lines(preflight_words(torchrun))}).splitlines()


def _lines(torchrun: tuple[str, ...]) -> list[str]:
    return in_lines([re.sub(r"\$(python|run)\S*", r'"\g<0>"', word) for word in torchrun])


def options(run: Path, config: Config, plan: Plan) -> list[str]:
    """The options of sbatch, without those that launch.slurm.extra gives in its own way, and then that."""
    asked = config.launch.slurm
    given = {_INSTEAD.get(name, name) for name in map(option_name, asked.extra)}
    own = {
        "job-name": run.name,
        "nodes": str(config.cluster.nodes),
        "ntasks-per-node": "1",
        **_share_of_a_node(plan.gpu, plan.world_size // config.cluster.nodes),
        "partition": asked.partition,
        "account": asked.account,
        "time": asked.time,
        "qos": asked.qos,
        # Slurm looks at its clock once a minute, and may be as much too early, never too late.
        "signal": f"TERM@{_notice_s(config)}",
        "requeue": "",
        "open-mode": "append",
        # Relative paths of the config mean the same wherever the script is submitted.
        "chdir": shlex.quote(os.getcwd()),
        "output": shlex.quote(str(run.absolute() / "logs" / "slurm.log")),
    }
    mine = [_option(name, value) for name, value in own.items() if value is not None and name not in given]
    return [*mine, *asked.extra]


def _notice_s(config: Config) -> int:
    """Whole seconds between a signal and the end, 1 at least: 0 would mean something else to Slurm."""
    return max(1, math.ceil(config.launch.grace_seconds))


def _patience_s(config: Config) -> int:
    """Whole seconds that nodes may go on after the first has ended: all save together, and one may be frozen."""
    return min(_notice_s(config), _MOST_PATIENCE_S)


def _share_of_a_node(gpu: str, count: int) -> dict[str, str | None]:
    """What a job asks of each node: all of one whose GPUs it takes, so that nobody waits for its cores in vain."""
    if gpu == "cpu":
        return {"cpus-per-task": str(count)}
    if count >= GPUS[gpu].usual_gpus_per_node:
        return {"gpus-per-node": str(count), "exclusive": "", "mem": "0"}
    return {"gpus-per-node": str(count), "cpus-per-task": str(_CPUS_OF_A_GPU * count)}


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _path(run: Path) -> Path:
    return run.absolute() / SCRIPT


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
