"""The manifests of Kubernetes, against the published models of their kinds."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from kubeflow_trainer_api import models

from engine.planner.plan import plan
from engine.sources import Flag, load
from titancli.launch.manifest import KINDS, manifest, object_name, quoted
from titancli.rank_logs import rank_logs

BASE = {
    "cluster__gpu": "h100-80",
    "cluster__nodes": "2",
    "job__dump_folder": "/data/runs",
    "launch__scheduler": "kubernetes",
    "launch__kubernetes__image": "registry.example/titan:1",
    "launch__kubernetes__volumes": "training-data:/data",
}
SMALL = {
    "cluster__gpu": "cpu",
    "cluster__gpus_per_node": "1",
    "model__flavor": "debugmodel",
    "training__seq_len": "64",
    "training__local_batch_size": "1",
    "training__steps": "2",
    "training__mixed_precision_param": "float32",
    "lr_scheduler__warmup_steps": "1",
    "launch__kubernetes__kind": "JobSet",
}
# What every image has beside titan's Python: a shell and coreutils, and not always diffutils (ubi-minimal).
OF_EVERY_IMAGE = ("sh", "cat", "cp", "date", "ls", "mkdir", "mv", "rm", "sleep")
MODELS = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def objects(
    run: str = "/data/runs/First_Run", resumes: bool = False, **values: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the object of a run, as Kubernetes reads them."""
    flags = [Flag(key.replace("__", "."), value, "") for key, value in (BASE | values).items()]
    loaded = load(flags=flags, environ={})
    assert loaded.findings == ()
    configmap, made = yaml.safe_load_all(manifest(Path(run), loaded.config, plan(loaded.config), resumes=resumes))
    return configmap, made


def pods(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of an object, as one dictionary each; a TrainJob gives them in two halves."""
    spec = made["spec"]
    if made["kind"] == "PyTorchJob":
        return [replica["template"]["spec"] for replica in spec["pytorchReplicaSpecs"].values()]
    if made["kind"] == "JobSet":
        return [spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]]
    jobs = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = jobs[0]["template"]["spec"]["template"]["spec"]
    trainer = {"resources": spec["trainer"]["resourcesPerNode"], **spec["trainer"]}
    return [pod | {"containers": [pod["containers"][0] | trainer]}]


@pytest.mark.parametrize("kind", MODELS)
def test_a_manifest_has_only_fields_that_the_published_model_of_its_kind_knows(kind: str) -> None:
    configmap, made = objects(launch__kubernetes__kind=kind)
    assert MODELS[kind].from_dict(made).to_dict() == made
    assert models.IoK8sApiCoreV1ConfigMap.from_dict(configmap).to_dict() == configmap


def test_a_pytorchjob_has_the_fields_of_its_kind_and_pods_of_the_published_model() -> None:
    _, made = objects(launch__kubernetes__kind="PyTorchJob", cluster__nodes="3")
    spec = made["spec"]
    assert (made["apiVersion"], spec["nprocPerNode"], list(spec)) == (
        "kubeflow.org/v1",
        "8",
        ["nprocPerNode", "runPolicy", "pytorchReplicaSpecs"],
    )
    replicas = spec["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Master": 1, "Worker": 2}
    for replica in replicas.values():
        assert list(replica) == ["replicas", "restartPolicy", "template"]
        assert models.IoK8sApiCoreV1PodTemplateSpec.from_dict(replica["template"]).to_dict() == replica["template"]
        assert [container["name"] for container in replica["template"]["spec"]["containers"]] == ["pytorch"]


def test_a_pytorchjob_of_one_node_has_no_workers() -> None:
    _, made = objects(launch__kubernetes__kind="PyTorchJob", cluster__nodes="1")
    assert list(made["spec"]["pytorchReplicaSpecs"]) == ["Master"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_has_its_gpus_its_claim_and_shared_memory(kind: str) -> None:
    configmap, made = objects(launch__kubernetes__kind=kind, launch__grace_seconds="90.5")
    for pod in pods(made):
        container = pod["containers"][0]
        assert (container["image"], pod["terminationGracePeriodSeconds"]) == ("registry.example/titan:1", 91)
        assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
        assert volumes[mounted["/data"]] == {"persistentVolumeClaim": {"claimName": "training-data"}}
        assert volumes[mounted["/dev/shm"]] == {"emptyDir": {"medium": "Memory"}}
        assert volumes[mounted["/etc/titan"]] == {"configMap": {"name": configmap["metadata"]["name"]}}


def test_mi300x_are_gpus_of_amd_and_take_its_runtime() -> None:
    _, made = objects(cluster__gpu="mi300x")
    assert made["spec"]["runtimeRef"] == {"name": "torch-rocm-distributed"}
    assert made["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"amd.com/gpu": 8}}


def test_pods_read_the_config_as_it_was_resolved(tmp_path: Path) -> None:
    configmap, _ = objects(job__description="\"of 'two'  words:  # x\"")
    (tmp_path / "config.toml").write_text(configmap["data"]["config.toml"], "utf-8")
    read = load(tmp_path / "config.toml", environ={})
    assert (read.findings, read.config.job.description) == ((), "of 'two'  words:  # x")
    assert read.config.cluster.nodes == 2


def test_another_config_has_another_configmap() -> None:
    names = [objects(training__steps=steps)[0]["metadata"]["name"] for steps in ("10", "10", "20")]
    assert (names[0] == names[1], names[0] == names[2]) == (True, False)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("first", "first"),
        ("First_Run.2", "first-run-2"),
        ("8b-2026", "run-8b-2026"),
        ("__", "run"),
        ("a" * 40, "a" * 40),
    ],
)
def test_a_run_has_a_name_that_a_host_can_have(run: str, name: str) -> None:
    assert object_name(run) == name


def test_long_names_that_begin_alike_stay_apart() -> None:
    first, second = object_name("a" * 60), object_name("a" * 61)
    assert (first != second, len(first) <= 40) == (True, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", ["no", "ON", "Null", "y"])
def test_a_run_whose_name_is_a_word_of_yaml_keeps_it(kind: str, run: str) -> None:
    _, made = objects(f"/data/runs/{run}", launch__kubernetes__kind=kind)
    assert made["metadata"]["name"] == run.lower()


@pytest.mark.parametrize("text", ["a\u2028b\x85", "ends  \n in spaces", "\x7f\U0001f600 \\ '", "\tx\n#y"])
def test_the_config_is_read_as_it_was_written_whatever_is_in_it(tmp_path: Path, text: str) -> None:
    configmap, _ = objects(job__description=text)
    (tmp_path / "config.toml").write_text(configmap["data"]["config.toml"], "utf-8")
    assert load(tmp_path / "config.toml", environ={}).config.job.description == text


def test_kubernetes_puts_nothing_in_the_place_of_a_dollar_in_a_path() -> None:
    folder = "/data/$(HOME) $$x"
    _, made = objects(job__dump_folder=folder)
    # What the kubelet makes of two: one.
    script = made["spec"]["trainer"]["args"][0].replace("$$", "$")
    assert script.splitlines()[1] == f"run='{folder}/First_Run'"


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "null",
        "NULL",
        "tRUE",
        "\U0001f600",
        "a\u2028b",
        'a"\\b\n',
        "1.0",
        "2026-01-01",
        "a: b",
        "a #b",
        "",
        "registry:5000/titan@sha256:0f",
        "/data",
    ],
)
def test_a_text_is_read_as_the_text_that_it_is(text: str) -> None:
    assert yaml.safe_load(quoted(text)) == text


@pytest.mark.parametrize("kind", MODELS)
def test_a_manifest_that_restarts_has_only_fields_of_its_kind(kind: str) -> None:
    _, made = objects(launch__kubernetes__kind=kind, checkpoint__enable="true", launch__max_restarts="2")
    assert MODELS[kind].from_dict(made).to_dict() == made


def test_a_jobset_starts_all_pods_again_as_often_as_promised_and_for_evictions_besides() -> None:
    restarts = {"checkpoint__enable": "true", "launch__max_restarts": "2", "launch__kubernetes__kind": "JobSet"}
    spec = objects(**restarts)[1]["spec"]
    assert spec["failurePolicy"]["maxRestarts"] == 2
    assert spec["failurePolicy"]["rules"][0]["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    job = spec["replicatedJobs"][0]["template"]["spec"]
    ends = [rule.get("onPodConditions") or rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"]]
    assert (ends, job["backoffLimit"]) == ([[{"type": "DisruptionTarget", "status": "True"}], [143]], 0)


def test_a_jobset_that_keeps_nothing_is_never_started_again() -> None:
    spec = objects(launch__kubernetes__kind="JobSet")[1]["spec"]
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert "podFailurePolicy" not in spec["replicatedJobs"][0]["template"]["spec"]


@pytest.mark.parametrize(("enable", "policy", "backoff"), [("false", "Never", 0), ("true", "OnFailure", 7)])
def test_a_pytorchjob_restarts_containers_as_often_as_promised(enable: str, policy: str, backoff: int) -> None:
    restarts = {"checkpoint__enable": enable, "launch__max_restarts": "3" if enable == "true" else "0"}
    spec = objects(launch__kubernetes__kind="PyTorchJob", **restarts)[1]["spec"]
    assert spec["runPolicy"]["backoffLimit"] == backoff
    assert {replica["restartPolicy"] for replica in spec["pytorchReplicaSpecs"].values()} == {policy}


class Pods:
    """The pods of a run as processes here: their script is the manifest's, with the places that a cluster gives."""

    def __init__(self, folder: Path, *, resumes: bool = False, **values: str) -> None:
        claim = {"job__dump_folder": str(folder / "runs"), "launch__kubernetes__volumes": f"data:{folder}"}
        configmap, made = objects(str(folder / "runs/x"), resumes, **SMALL | claim | values)
        self.port = free_port()
        self.folder, self.container = folder, pods(made)[0]["containers"][0]
        (folder / "etc").mkdir(exist_ok=True)
        (folder / "bin").mkdir()
        for name in OF_EVERY_IMAGE:
            (folder / "bin" / name).symlink_to(str(shutil.which(name)))
        self.path = f"{Path(sys.executable).parent}{os.pathsep}{folder / 'bin'}"
        for name, text in configmap["data"].items():
            (folder / "etc" / name).write_text(text, "utf-8")

    def start(self, node: int) -> subprocess.Popen[bytes]:
        """The container of a node."""
        shared_memory = self.folder / f"shm-{node}"
        shared_memory.mkdir(exist_ok=True)
        script = self.container["args"][0]
        for there, here in {"/etc/titan": str(self.folder / "etc"), "/dev/shm": str(shared_memory)}.items():
            script = script.replace(there, here)
        script = re.sub(r'head="[^"]+" port="\d+"', f'head="127.0.0.1" port="{self.port}"', script)
        environ = os.environ | {each["name"]: each["value"] for each in self.container["env"]}
        with (self.folder / f"out-{node}").open("ab") as out:
            return subprocess.Popen(
                [*self.container["command"], script],
                env=environ | {"JOB_COMPLETION_INDEX": str(node), "PATH": self.path},
                stdout=out,
                stderr=out,
            )

    def said(self, node: int) -> str:
        """What the containers of a node have written."""
        return (self.folder / f"out-{node}").read_text("utf-8")


@pytest.mark.world
def test_two_pods_train_together_and_one_that_is_started_again_writes_over_nothing(tmp_path: Path) -> None:
    run, made = tmp_path / "runs/x", Pods(tmp_path)
    started = [made.start(node) for node in range(2)]
    assert [process.wait(100) for process in started] == [0, 0], made.said(0)
    assert list(rank_logs(run)) == [0, 1]
    events = {path.name: path.read_bytes() for path in (run / "events").iterdir()}
    assert (len(events), made.start(1).wait(10)) == (2, 2)
    assert {path.name: path.read_bytes() for path in (run / "events").iterdir()} == events


@pytest.mark.world
def test_pods_that_fail_are_started_again_from_their_checkpoint_as_often_as_promised(tmp_path: Path) -> None:
    saves = {"checkpoint__enable": "true", "checkpoint__interval": "1", "launch__max_restarts": "1"}
    run, made = tmp_path / "runs/x", Pods(tmp_path, training__steps="100000", **saves)
    first = [made.start(node) for node in range(2)]
    wait_for_saves(run, starts=1)
    kill_the_worker(first[1])
    assert [process.wait(60) for process in first] == [1, 1], made.said(0)
    # A cluster starts them again in any order.
    second = [made.start(node) for node in (1, 0)]
    wait_for_saves(run, starts=2)
    for process in second:
        process.terminate()
    assert [process.wait(60) for process in second] == [143, 143], made.said(0)
    counts = [tmp_path / f"shm-{node}/titan-failures" for node in range(2)]
    assert [count.read_text("utf-8") for count in counts] == ["1\n", "1\n"], "being asked to end is no failure"


def test_a_pod_that_has_failed_more_often_than_promised_is_not_started_again(tmp_path: Path) -> None:
    made = Pods(tmp_path, checkpoint__enable="true", launch__max_restarts="1")
    (tmp_path / "shm-0").mkdir()
    (tmp_path / "shm-0/titan-failures").write_text("2\n", "utf-8")
    assert made.start(0).wait(10) == 1
    assert made.said(0).endswith("has failed, and launch.max_restarts = 1 starts it no more\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("resumes", "says"), [(False, "holds a run of another config\n"), (True, "")])
def test_another_config_in_the_folder_of_a_run_is_for_resume_alone(tmp_path: Path, resumes: bool, says: str) -> None:
    made = Pods(tmp_path, resumes=resumes, checkpoint__enable="true")
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/config.toml").write_text("of another\n", "utf-8")
    # The first node is not there: this one waits for it, or has ended before.
    process = made.start(1)
    while process.poll() is None and not (tmp_path / "runs/x/plan.json").is_file():
        time.sleep(0.02)
    assert (process.poll() is None, says in made.said(1)) == (resumes, True)
    process.kill()
    process.wait()


def wait_for_saves(run: Path, starts: int) -> None:
    """Waits until rank 0 has committed a checkpoint in that many starts, each of which goes on from one before."""
    events = run / "events/rank-00000.jsonl"
    goes_on = [r'"resumed_from":null', *[r'"resumed_from":\d'] * (starts - 1)]
    wanted = re.compile("".join(f'.*?{start}.*?"state":"committed"' for start in goes_on), re.DOTALL)
    while not (events.is_file() and wanted.match(events.read_text("utf-8"))):
        time.sleep(0.05)


def kill_the_worker(pod: subprocess.Popen[bytes]) -> None:
    """Kills the process of a pod that trains."""
    family = psutil.Process(pod.pid).children(recursive=True)
    next(each for each in family if "torch.distributed.run" not in each.cmdline() and "engine" in each.cmdline()).kill()
