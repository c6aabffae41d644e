"""A run that Kubernetes starts: its manifest printed, or handed to kubectl.

Knows kubectl. Does not know what is in the manifest (manifest): its pods make the run folder, so nothing of it is
written here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EXIT_OK, TitanError
from engine.planner.plan import Plan
from engine.sources import Loaded
from titancli import report
from titancli.launch.answers import Stopped, Unanswered, heard_out
from titancli.launch.manifest import KINDS, Kind, manifest, object_name
from titancli.launch.run_folder import Place, choose
from titancli.monitor.follow import folder_of_runs

if TYPE_CHECKING:
    from titancli.launch import Options

_ANSWERS_WITHIN_S = 60.0


def launch_on_kubernetes(loaded: Loaded, plan: Plan, place: Place, options: Options) -> int:
    """Submits a run, or prints its manifest; returns the exit code. TitanError where it cannot be submitted."""
    asked = loaded.config.launch.kubernetes
    kind, name = KINDS[asked.kind], object_name(place.run.name)
    if place.taken:
        message = f"--overwrite cannot move the run folder {place.run} aside under its pods"
        raise TitanError(report.error("U193", message, "give another --name"))
    resumes = place.resumed is not None or options.resume
    text = manifest(place.run, loaded.config, plan, resumes=resumes, preflight=options.preflight)
    if options.dry_run:
        report.say(text.removesuffix("\n"))
        report.say("nothing was submitted; titan launch hands this to: kubectl apply -f -", sys.stderr)
        return EXIT_OK
    try:
        _submit(kind, name, asked.namespace, text)
    except Stopped as stopped:
        return stopped.exit_code
    where = (
        f"{loaded.config.cluster.nodes} x {report.devices(plan.gpu, plan.world_size // loaded.config.cluster.nodes)}"
    )
    report.say(
        f"{place.run.name}: {asked.kind} {name} in namespace {asked.namespace} on {where}, {report.layout(plan)}"
    )
    report.say(f"  the pods write {place.run} and read the data that is there, not here", tint="faint")
    kubectl = f"kubectl -n {shlex.quote(asked.namespace)}"
    report.say(
        f"next: {kubectl} get {kind.resource} {name}; {kubectl} logs -f -l {kind.label}={name} --prefix; "
        f"{_ends(kind, name, asked.namespace)} ends it"
    )
    return EXIT_OK


def _submit(kind: Kind, name: str, namespace: str, text: str) -> None:
    """Hands a manifest over; TitanError where there is no kubectl, the name is taken, or the cluster refuses it."""
    if shutil.which("kubectl") is None:
        message = "there is no kubectl on this machine, so nothing can be submitted to Kubernetes"
        fix = "launch where kubectl is, or print the manifest with --dry-run"
        raise TitanError(report.error("U192", message, fix, key="launch.scheduler"))
    there = _kubectl("get", kind.resource, name, f"--namespace={namespace}", "--ignore-not-found", "--output=name")
    if there.strip():
        message = f"{there.strip()} is there already in namespace {namespace}"
        fix = f"give another --name, or first: {_ends(kind, name, namespace)}"
        raise TitanError(report.error("U193", message, fix))
    _apply(kind, name, namespace, text)


def _apply(kind: Kind, name: str, namespace: str, text: str) -> None:
    """Makes the objects; Stopped where this process is asked to end meanwhile: they are deleted again, or named."""
    try:
        asked = heard_out("kubectl", "apply", "--filename=-", within_s=_ANSWERS_WITHIN_S, text=text)
    except Unanswered as silence:
        if silence.stop_code is not None:
            report.say(f"{kind.resource} {name} may be there: {_ends(kind, name, namespace)}", sys.stderr)
            raise Stopped(silence.stop_code) from None
        raise _no_answer("apply") from None
    except OSError as trouble:
        raise _not_started(trouble) from trouble
    _require_well("apply", asked.exit_code, asked.err)
    if asked.stop_code is not None:
        _kubectl("delete", kind.resource, name, f"--namespace={namespace}", "--ignore-not-found", "--wait=false")
        report.say(f"asked to end: {kind.resource} {name} was made and is deleted again", sys.stderr)
        raise Stopped(asked.stop_code)


def _ends(kind: Kind, name: str, namespace: str) -> str:
    """The command that ends and deletes a run's object."""
    return f"kubectl -n {shlex.quote(namespace)} delete {kind.resource} {name}"


def _kubectl(*words: str) -> str:
    """What kubectl answers; TitanError in its own words where it does not do what it is asked."""
    try:
        asked = subprocess.run(
            ("kubectl", *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(words[0]) from None
    except OSError as trouble:
        raise _not_started(trouble) from trouble
    _require_well(words[0], asked.returncode, asked.stderr)
    return asked.stdout


def _no_answer(word: str) -> TitanError:
    message = f"kubectl {word} has not answered in {_ANSWERS_WITHIN_S:.0f} s"
    return TitanError(report.error("U194", message, "see whether kubectl cluster-info answers"))


def _not_started(trouble: OSError) -> TitanError:
    message = f"kubectl cannot be started: {(trouble.strerror or str(trouble)).lower()}"
    return TitanError(report.error("U194", message, "see what `kubectl version` says"))


def _require_well(word: str, exit_code: int, err: str) -> None:
    if exit_code == 0:
        return
    # kubectl logs every try before it says in plain words what is wrong.
    plain = [line for line in err.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]
    told = " ".join(plain).strip() or f"it exited with {exit_code}"
    fix = "mend what it says; the cluster has to know the kind, which its operator brings"
    raise TitanError(report.error("U194", f"kubectl {word} failed: {told}", fix))


def place_of(loaded: Loaded, options: Options) -> Place | Path:
    """Where the pods find or make the run folder: this machine need not see it."""
    folder, name = folder_of_runs(loaded.config.job.dump_folder), loaded.config.job.name
    # One that is not here is judged by its name alone, as that of a new run.
    is_elsewhere = bool(name) and not options.overwrite and not os.path.lexists(folder / name)
    resume = options.resume and not is_elsewhere
    return choose(loaded, resume=resume, overwrite=options.overwrite, now_s=time.time())
