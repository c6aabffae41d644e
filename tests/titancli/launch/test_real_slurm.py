"""A job on a real Slurm of two nodes on this machine; skipped where Slurm's daemons are not installed, or not root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue")
SBIN = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation={dir}
SlurmdSpoolDir={dir}/spool-%n
SlurmdPidFile={dir}/%n.pid
SlurmctldPidFile={dir}/slurmctld.pid
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=main Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
"""
pytestmark = [
    pytest.mark.world,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name, path=SBIN) is None for name in NEEDED),
        reason="needs Slurm's daemons (Debian: slurm-wlm) and root",
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody who submits to a Slurm of two nodes that is up."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    # Both nodes are this machine, and no name server knows them.
    (folder / "bin/scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n", "utf-8")
    (folder / "bin/scontrol").chmod(0o755)
    for node in ("n1", "n2"):
        (folder / f"spool-{node}").mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONF.format(host=host, dir=folder, ports=free_ports(3)), "utf-8")
    environ = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder / 'bin'}{os.pathsep}{SBIN}"}
    munge = [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in ("pid-file", "log-file", "seed-file")]
    daemons = (
        ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge),
        ("slurmctld", "-D"),
        ("slurmd", "-D", "-N", "n1"),
        ("slurmd", "-D", "-N", "n2"),
    )
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("wb") as log:
            for daemon in daemons:
                started.append(subprocess.Popen(daemon, env=os.environ | environ, stdout=log, stderr=log))
                time.sleep(0.5)
        assert wait_for(lambda: asked(environ, "sinfo", "-h", "-o", "%D %t") == "2 idle"), (
            folder / "daemons.log"
        ).read_text("utf-8")
        yield environ
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(20)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def asked(environ: dict[str, str], *command: str) -> str:
    """What one of Slurm's commands answers."""
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip()


def wait_for(holds: Callable[[], bool], within_s: float = 90.0) -> bool:
    """Whether something comes to hold in time."""
    until_s = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < until_s:
        time.sleep(0.2)
    return held


def submitted(titan: Callable[..., Any], environ: dict[str, str], name: str, steps: int) -> str:
    """The number of the job that a launch of two nodes makes."""
    ran = titan(
        *("launch", "--preset", "quickstart", "--scheduler", "slurm", "--name", name, "--cluster.nodes=2"),
        *("--cluster.gpus_per_node=1", f"--training.steps={steps}", "--lr_scheduler.warmup_steps=1"),
        **environ,
    )
    assert ran.code == 0, ran.err
    return str(ran.out.split()[2])


def test_a_job_of_two_nodes_trains_to_its_last_step(
    titan: Callable[..., Any], slurm: dict[str, str], tmp_path: Path
) -> None:
    job = submitted(titan, slurm, "x", 3)
    assert wait_for(lambda: asked(slurm, "squeue", "-h", "-j", job) == "")
    assert "done: 3 of 3 steps in " in (tmp_path / "runs/x/logs/slurm.log").read_text("utf-8")


def test_c42_a_cancelled_job_ends_as_stopped_and_leaves_no_process(
    titan: Callable[..., Any], slurm: dict[str, str], tmp_path: Path
) -> None:
    job, run = submitted(titan, slurm, "y", 3000), tmp_path / "runs/y"
    event = run / "events/rank-00000.jsonl"
    assert wait_for(lambda: event.is_file() and '"step"' in event.read_text("utf-8"))
    asked(slurm, "scancel", job)
    assert wait_for(lambda: asked(slurm, "squeue", "-h", "-j", job) == "")
    assert json.loads((run / "launcher.json").read_text("utf-8"))["exit_code"] == 143
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if str(run) in (process.info["cmdline"] or [])]
    assert left == []
