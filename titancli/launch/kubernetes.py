"""A run that Kubernetes starts: its manifest printed, or handed to kubectl.

Knows kubectl. Does not know what is in the manifest (manifest): its pods make the run folder, so nothing of it is
written here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

from engine.errors import EXIT_OK, TitanError
from engine.planner.plan import Plan
from engine.sources import Loaded
from titancli import report
from titancli.launch.manifest import KINDS, Kind, manifest, object_name
from titancli.launch.run_folder import Place

_ANSWERS_WITHIN_S = 60.0


def launch_on_kubernetes(loaded: Loaded, plan: Plan, place: Place, *, dry_run: bool) -> int:
    """Submits a run, or prints its manifest; returns the exit code. TitanError where it cannot be submitted."""
    asked = loaded.config.launch.kubernetes
    kind, name = KINDS[asked.kind], object_name(place.run.name)
    if place.taken:
        message = f"--overwrite cannot move the run folder {place.run} aside under its pods"
        raise TitanError(report.error("U193", message, "give another --name"))
    text = manifest(place.run, loaded.config, plan)
    if dry_run:
        report.say(text.removesuffix("\n"))
        report.say("nothing was submitted; titan launch hands this to: kubectl apply -f -", sys.stderr)
        return EXIT_OK
    _submit(kind, name, asked.namespace, text)
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
        f"{kubectl} delete {kind.resource} {name} ends it"
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
        raise TitanError(report.error("U193", message, "give another --name, or delete it with kubectl first"))
    _kubectl("apply", "--filename=-", text=text)


def _kubectl(*words: str, text: str = "") -> str:
    """What kubectl answers; TitanError in its own words where it does not do what it is asked."""
    try:
        asked = subprocess.run(
            ("kubectl", *words),
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"kubectl {words[0]} has not answered in {_ANSWERS_WITHIN_S:.0f} s"
        raise TitanError(report.error("U194", message, "see whether kubectl cluster-info answers")) from None
    except OSError as trouble:
        message = f"kubectl cannot be started: {(trouble.strerror or str(trouble)).lower()}"
        raise TitanError(report.error("U194", message, "see what `kubectl version` says")) from trouble
    if asked.returncode != 0:
        # kubectl logs every try before it says in plain words what is wrong.
        plain = [line for line in asked.stderr.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]
        told = " ".join(plain).strip() or f"it exited with {asked.returncode}"
        fix = "mend what it says; the cluster has to know the kind, which its operator brings"
        raise TitanError(report.error("U194", f"kubectl {words[0]} failed: {told}", fix))
    return asked.stdout
