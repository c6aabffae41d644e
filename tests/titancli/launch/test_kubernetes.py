"""`titan launch --scheduler kubernetes` from outside. kubectl is stood in for by a small script."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = ("launch", "--preset", "quickstart", "--scheduler", "kubernetes", "--name", "First", "--cluster.nodes=2")
IMAGE = (
    "--launch.kubernetes.image=titan:1",
    "--launch.kubernetes.volumes=data:/data",
    "--job.dump_folder=/data/runs",
    "--launch.kubernetes.namespace=team",
    "--parallelism.data_parallel_shard_degree=4",
)
KUBECTL = """#!/bin/sh
echo "$@" >>{folder}/asked
case "$1" in get) {get} ;; apply) cat >{folder}/manifest; {apply} ;; esac
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., str]:
    """A PATH on which kubectl answers as told."""

    def made(get: str = "true", apply: str = "true") -> str:
        (tmp_path / "bin").mkdir(exist_ok=True)
        kubectl = tmp_path / "bin/kubectl"
        kubectl.write_text(KUBECTL.format(folder=tmp_path, get=get, apply=apply), "utf-8")
        kubectl.chmod(0o755)
        return f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"

    return made


def test_what_is_printed_is_what_is_handed_over(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    dry = titan(*KUBERNETES, *IMAGE, "--dry-run", PATH=cluster())
    assert (dry.code, (tmp_path / "asked").exists()) == (0, False)
    ran = titan(*KUBERNETES, *IMAGE, PATH=cluster())
    assert (ran.code, (tmp_path / "manifest").read_text("utf-8")) == (0, dry.out)
    assert [each["kind"] for each in yaml.safe_load_all(dry.out)] == ["ConfigMap", "TrainJob"]


def test_it_asks_for_the_name_first_and_says_how_to_watch(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan(*KUBERNETES, *IMAGE, PATH=cluster())
    assert (tmp_path / "asked").read_text("utf-8").splitlines() == [
        "get trainjobs.trainer.kubeflow.org first --namespace=team --ignore-not-found --output=name",
        "apply --filename=-",
    ]
    assert ran.out.startswith("First: TrainJob first in namespace team on 2 x 2 processes on cpu, FSDP 4\n")
    assert "next: kubectl -n team get trainjobs.trainer.kubeflow.org first; " in ran.out


def test_a_name_that_is_there_is_not_written_over(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan(*KUBERNETES, *IMAGE, PATH=cluster(get="echo trainjob.trainer.kubeflow.org/first"))
    assert (ran.code, (tmp_path / "manifest").exists()) == (2, False)
    assert "error[U193]: trainjob.trainer.kubeflow.org/first is there already in namespace team\n" in ran.err


def test_what_the_cluster_refuses_is_told_in_plain_words(
    titan: Callable[..., Any], cluster: Callable[..., str]
) -> None:
    tries = "echo 'E1130 15:17:20.5 30290 memcache.go:265] x' >&2; echo 'no such kind' >&2; exit 1"
    ran = titan(*KUBERNETES, *IMAGE, PATH=cluster(apply=tries))
    assert (ran.code, "error[U194]: kubectl apply failed: no such kind\n" in ran.err) == (2, True)


def test_a_kubectl_that_cannot_be_started_or_answers_in_other_bytes_is_told(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan(*KUBERNETES, *IMAGE, PATH=cluster(apply="printf '\\377 no' >&2; exit 1"))
    assert (ran.code, "error[U194]: kubectl apply failed: \ufffd no\n" in ran.err) == (2, True)
    (tmp_path / "bin/kubectl").write_text("#!/no/such/shell\n", "utf-8")
    ran = titan(*KUBERNETES, *IMAGE, PATH=str(tmp_path / "bin"))
    assert (ran.code, "error[U194]: kubectl cannot be started: no such file or directory\n" in ran.err) == (2, True)


def test_without_kubectl_it_says_where_to_launch(titan: Callable[..., Any], tmp_path: Path) -> None:
    ran = titan(*KUBERNETES, *IMAGE, PATH=str(tmp_path))
    assert (ran.code, "error[U192]: there is no kubectl" in ran.err) == (2, True)


def test_without_an_image_nothing_is_handed_over(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    ran = titan(*KUBERNETES, *IMAGE[1:], PATH=cluster())
    assert (ran.code, "error[J905]" in ran.err, (tmp_path / "asked").exists()) == (2, True, False)


def test_resume_needs_no_sight_of_the_run_folder(
    titan: Callable[..., Any], cluster: Callable[..., str], tmp_path: Path
) -> None:
    saves = ("--checkpoint.enable", "--resume", "--max-restarts", "2")
    ran = titan(*KUBERNETES, *IMAGE, *saves, PATH=cluster())
    assert (ran.code, "holds a run of another config" in (tmp_path / "manifest").read_text("utf-8")) == (0, False)
    again = titan(*KUBERNETES, *IMAGE, *saves, PATH=cluster(get="echo trainjob.trainer.kubeflow.org/first"))
    assert "or first: kubectl -n team delete trainjobs.trainer.kubeflow.org first\n" in again.err


def test_preflight_is_in_the_manifest(titan: Callable[..., Any]) -> None:
    ran = titan(*KUBERNETES, *IMAGE, "--preflight", "--dry-run")
    script = list(yaml.safe_load_all(ran.out))[1]["spec"]["trainer"]["args"][0]
    assert (
        script.index("-m engine.preflight") < script.index("-m titancli.launch.preflight") < script.index('-m engine "')
    )
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_an_object_that_is_made_while_the_launch_is_asked_to_end_is_deleted_again(
    titan_command: tuple[str, ...], cluster: Callable[..., str], tmp_path: Path
) -> None:
    path = cluster(apply=f"touch {tmp_path}/called; while [ ! -e {tmp_path}/signalled ]; do sleep 0.05; done")
    launch = subprocess.Popen(
        [*titan_command, *KUBERNETES, *IMAGE],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launch.stderr is not None
    while not (tmp_path / "called").exists() and launch.poll() is None:
        time.sleep(0.02)
    launch.terminate()
    assert launch.stderr.readline().startswith("waiting for kubectl to answer")
    (tmp_path / "signalled").touch()
    err = launch.communicate(timeout=30)[1]
    assert (launch.returncode, err) == (
        143,
        "asked to end: trainjobs.trainer.kubeflow.org first was made and is deleted again\n",
    )
    assert (
        (tmp_path / "asked")
        .read_text("utf-8")
        .splitlines()[-1]
        .startswith("delete trainjobs.trainer.kubeflow.org first ")
    )
