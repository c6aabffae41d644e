"""The manifest of a run: the object that Kubernetes starts it from, and the ConfigMap that its pods read.

Knows the three kinds and what each calls the nodes of a run. The pods need no disk of this machine: they make the run
folder themselves. Does not know the fields (templates) nor how a manifest is handed over (kubernetes).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.config import Config
from engine.planner.plan import Plan
from engine.preflight.judging import FILE as VERDICT
from engine.rules.jobs import is_lost, keeps_checkpoints, volume_parts
from engine.settled import FILE, settled_by
from engine.sources import to_toml
from titancli import report
from titancli.launch.ended import EXIT_RESTART
from titancli.launch.preflight import preflight_words
from titancli.launch.template import Value, filled
from titancli.launch.torchrun import environment_of_workers, in_lines, torchrun_words

# Kinds add up to 23 letters to a name, and a host has 63 at most.
_LONGEST_NAME = 40
_PORT = "29500"
_THREADS_OF_A_GPU = "8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object: its resource for kubectl, the label of its pods, and where a node learns its place from.

    `master_addr` may name the object. The operators set the variables; a JobSet's pods have hosts of fixed names.
    """

    resource: str
    label: str
    template: str
    node_rank: str
    master_addr: str
    master_port: str = _PORT


KINDS: Mapping[str, Kind] = {
    "TrainJob": Kind(
        resource="trainjobs.trainer.kubeflow.org",
        label="jobset.sigs.k8s.io/jobset-name",
        template="trainjob.yaml",
        node_rank="$PET_NODE_RANK",
        master_addr="$PET_MASTER_ADDR",
        master_port="$PET_MASTER_PORT",
    ),
    "PyTorchJob": Kind(
        resource="pytorchjobs.kubeflow.org",
        label="training.kubeflow.org/job-name",
        template="pytorchjob.yaml",
        node_rank="$RANK",
        master_addr="$MASTER_ADDR",
        master_port="$MASTER_PORT",
    ),
    "JobSet": Kind(
        resource="jobsets.jobset.x-k8s.io",
        label="jobset.sigs.k8s.io/jobset-name",
        template="jobset.yaml",
        node_rank="$JOB_COMPLETION_INDEX",
        master_addr="{name}-node-0-0.{name}",
    ),
}


def object_name(run: str) -> str:
    """The name of a run as Kubernetes takes it; one that is cut keeps apart from others by a hash."""
    name = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-") or "run"
    name = name if name[0].isalpha() else f"run-{name}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def manifest(run: Path, config: Config, plan: Plan, *, resumes: bool = False, preflight: bool = False) -> str:
    """The YAML of a run: a ConfigMap, and the object of its kind.

    With `resumes` its pods go on in a folder whatever the config of the run in it; with `preflight` they measure first.
    """
    name, asked = object_name(run.name), config.launch.kubernetes
    files = _files(config, plan)
    digest = hashlib.sha256("\0".join(f"{file}\0{text}" for file, text in files.items()).encode()).hexdigest()
    # Named by what is in it: one that is left over from an earlier run can never be taken for this one's.
    configmap = f"{name}-{digest[:8]}"
    where = f"{config.cluster.nodes} x {report.devices(plan.gpu, plan.world_size // config.cluster.nodes)}"
    top = filled(
        "configmap.yaml",
        {
            "what": f"{run.name}: {config.model.name} {config.model.flavor} on {where}",
            "name": configmap,
            "namespace": quoted(asked.namespace),
            "data": [line for file, text in files.items() for line in _block(file, text)],
        },
    )
    script = _script(run, config, plan, name=name, resumes=resumes, preflight=preflight)
    return top + _object(config, plan, name=name, configmap=configmap, script=script)


def _files(config: Config, plan: Plan) -> dict[str, str]:
    """What workers and monitors read of a run folder."""
    files = {"config.toml": to_toml(config), "plan.json": json.dumps(plan.to_json(), indent=1) + "\n"}
    settled = settled_by(config, plan)
    return files | ({FILE: json.dumps(settled, indent=1) + "\n"} if settled else {})


def _object(config: Config, plan: Plan, *, name: str, configmap: str, script: str) -> str:
    asked = config.launch.kubernetes
    kind, nodes = KINDS[asked.kind], config.cluster.nodes
    head: dict[str, Value] = {"name": quoted(name), "namespace": quoted(asked.namespace)}
    pod = _pod(config, plan, configmap=configmap, script=script)
    processes = str(plan.world_size // nodes)
    if asked.kind == "TrainJob":
        runtime = "torch-rocm-distributed" if _is_amd(plan.gpu) else "torch-distributed"
        more: dict[str, Value] = {"nodes": str(nodes), "processes": processes, "runtime": runtime}
        return filled(kind.template, head | pod | more)
    restarts = config.launch.max_restarts
    if asked.kind == "JobSet":
        outlives = keeps_checkpoints(config)
        gang: dict[str, Value] = {
            "nodes": str(nodes),
            "max_restarts": str(restarts),
            "rules": filled("restarts.yaml", {}).splitlines() if outlives else [],
            "disrupted": filled("disrupted.yaml", {}).splitlines() if outlives else [],
        }
        return filled(kind.template, head | pod | gang)
    # The operator adds up the restarts of all containers, and fails the job when they reach the limit.
    replica: dict[str, Value] = {"restart_policy": "OnFailure" if config.checkpoint.enable else "Never"}
    backoff = str(restarts * nodes + 1 if config.checkpoint.enable else 0)
    roles = {"Master": 1, "Worker": nodes - 1}
    replicas = [
        line
        for role, count in roles.items()
        if count
        for line in filled("pytorchreplica.yaml", pod | replica | {"role": role, "count": str(count)}).splitlines()
    ]
    return filled(kind.template, head | {"processes": processes, "replicas": replicas, "backoff": backoff})


def _pod(config: Config, plan: Plan, *, configmap: str, script: str) -> dict[str, Value]:
    """What a pod is made of, the same in every kind."""
    claims = [volume_parts(volume) for volume in config.launch.kubernetes.volumes]
    volumes = [
        filled("claim.yaml", {"volume": f"claim-{at}", "claim": quoted(claim)}) for at, (claim, _) in _at(claims)
    ]
    mounts = [filled("mount.yaml", {"volume": f"claim-{at}", "path": quoted(path)}) for at, (_, path) in _at(claims)]
    grace_s = max(1, math.ceil(config.launch.grace_seconds))
    return {
        "image": quoted(config.launch.kubernetes.image or ""),
        "grace": str(grace_s),
        "script": script.splitlines(),
        "env": list(_env(config, plan)),
        "resources": list(_resources(plan, plan.world_size // config.cluster.nodes)),
        "volumes": filled("volumes.yaml", {"configmap": configmap, "claims": _lines(volumes)}).splitlines(),
        "mounts": filled("mounts.yaml", {"claims": _lines(mounts)}).splitlines(),
    }


def _script(run: Path, config: Config, plan: Plan, *, name: str, resumes: bool, preflight: bool) -> str:
    """What a container does, for its shell."""
    kind, never = KINDS[config.launch.kubernetes.kind], str(config.launch.max_restarts + 1)
    return filled(
        "node.sh",
        {
            # Kubernetes puts a variable of the container in the place of $(NAME), and one $ in that of two.
            "run": shlex.quote(str(PurePosixPath(config.job.dump_folder) / run.name)).replace("$", "$$"),
            "node_rank": kind.node_rank,
            "master_addr": kind.master_addr.format(name=name),
            "master_port": kind.master_port,
            "torchrun": _shell_lines(_torchrun(config, plan, port="$port")),
            "preflight": list(_preflight(config, plan, never)) if preflight else [],
            "max_restarts": str(config.launch.max_restarts),
            "before": list(_before(config, resumes=resumes)),
            "goes_on": list(_goes_on(config)),
            "restart": str(EXIT_RESTART),
            "never": never,
        },
    )


def _torchrun(config: Config, plan: Plan, *, port: str) -> tuple[str, ...]:
    """torchrun for the shell of a container: its folder and the meeting place are variables of that."""
    nodes = config.cluster.nodes
    meeting = ('--node-rank="$node"', '--master-addr="$head"', f'--master-port="{port}"')
    return torchrun_words(
        "python3", "$run", nodes=nodes, processes=plan.world_size // nodes, meeting=meeting, shows_output=True
    )


def _preflight(config: Config, plan: Plan, never: str) -> Iterator[str]:
    """What goes before the run, at a port of its own: a node may be at the run before another has left this."""
    torchrun = _shell_lines(preflight_words(_torchrun(config, plan, port="$((port + 1))")))
    yield from filled("node_preflight.sh", {"verdict": VERDICT, "never": never, "torchrun": torchrun}).splitlines()


def _shell_lines(torchrun: tuple[str, ...]) -> list[str]:
    return in_lines([re.sub(r"\$run\S*", r'"\g<0>"', word) for word in torchrun])


def _before(config: Config, *, resumes: bool) -> Iterator[str]:
    """What a pod looks at in a folder that outlives it."""
    if is_lost(config):
        return
    if not resumes:
        yield from filled("node_same.sh", {}).splitlines()
    if not config.checkpoint.enable:
        yield from filled("node_once.sh", {}).splitlines()


def _goes_on(config: Config) -> Iterator[str]:
    """How a pod that is started again goes on, where what it has saved outlives it."""
    if keeps_checkpoints(config):
        patience_s = str(config.comm.init_timeout_seconds)
        yield from filled("node_goes_on.sh", {"patience": patience_s}).splitlines()


def _env(config: Config, plan: Plan) -> Iterator[str]:
    """Variables of the container, as YAML."""
    threads = "1" if plan.gpu == "cpu" else _THREADS_OF_A_GPU
    variables = environment_of_workers(config.launch.grace_seconds) | {"OMP_NUM_THREADS": threads}
    for name, value in variables.items():
        yield f"- name: {name}"
        yield f"  value: {quoted(value)}"


def _resources(plan: Plan, count: int) -> Iterator[str]:
    """What a pod asks of its node, as YAML."""
    if plan.gpu == "cpu":
        yield "requests:"
        yield f"  cpu: {count}"
    else:
        yield "limits:"
        yield f"  {'amd.com' if _is_amd(plan.gpu) else 'nvidia.com'}/gpu: {count}"


def _is_amd(gpu: str) -> bool:
    return gpu.startswith("mi")


def quoted(text: str) -> str:
    """A text as a YAML scalar that nothing can mistake for a number, a date or `yes`."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9./_-]*", text) and text.lower() not in _WORDS
    return text if plain else f'"{"".join(map(_escaped, text))}"'


_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _block(name: str, text: str) -> list[str]:
    """A file of a ConfigMap: its lines as they are, where YAML reads them so."""
    *lines, last = text.split("\n")
    if last or not all(line.isprintable() and line == line.rstrip() for line in lines):
        return [f"{name}: {quoted(text)}"]
    return [f"{name}: |", *(f"  {line}" for line in lines)]


def _at(claims: list[tuple[str, str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    return enumerate(claims)


def _lines(texts: list[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]
