"""A job on a real Slurm of two nodes on this machine; skipped where Slurm's daemons are not installed, or not root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.events import event_file, read_new
from titancli.monitor.follow import Follower

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
SchedulerParameters=batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=main Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
"""
ON_EACH_NODE = (
    "titan launch --name z --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID "
    "--rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500"
)
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
    scontrol = shutil.which("scontrol", path=SBIN)
    (folder / "bin/scontrol").write_text(
        f'#!/bin/sh\n[ "$2" = hostnames ] && echo 127.0.0.1 || exec {scontrol} "$@"\n', "utf-8"
    )
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


def submitted(titan: Callable[..., Any], environ: dict[str, str], name: str, *more: str) -> str:
    """The number of the job that a launch of two nodes makes."""
    ran = titan(
        *("launch", "--preset", "quickstart", "--scheduler", "slurm", "--name", name, "--cluster.nodes=2"),
        *("--cluster.gpus_per_node=1", "--lr_scheduler.warmup_steps=1", *more),
        **environ,
    )
    assert ran.code == 0, ran.err
    return str(ran.out.split()[2])


def saved_since_it_resumed(run: Path, starts: int) -> bool:
    """Whether rank 0 has committed a checkpoint in that many starts, each of which went on from one before."""
    events = run / "events/rank-00000.jsonl"
    begins = [r'"resumed_from":null', *[r'"resumed_from":\d'] * (starts - 1)]
    wanted = re.compile("".join(f'.*?{begin}.*?"state":"committed"' for begin in begins), re.DOTALL)
    return events.is_file() and wanted.match(events.read_text("utf-8")) is not None


def of_job(job: str, environ: dict[str, str]) -> list[list[str]]:
    """The commands of all processes that Slurm has started for a job and what descends from them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
            if (variables.get("SLURM_CONF"), variables.get("SLURM_JOB_ID")) == (environ["SLURM_CONF"], job):
                found.append(process.cmdline())
    return found


def test_a_job_of_two_nodes_is_measured_and_trains_to_its_last_step(
    titan: Callable[..., Any], slurm: dict[str, str], tmp_path: Path
) -> None:
    job = submitted(titan, slurm, "x", "--training.steps=3", "--preflight")
    assert wait_for(lambda: asked(slurm, "squeue", "-h", "-j", job) == "")
    said = (tmp_path / "runs/x/logs/slurm.log").read_text("utf-8")
    assert "preflight of 2 processes on cpu in " in said
    assert "done: 3 of 3 steps in " in said


def test_c42_a_job_that_is_requeued_goes_on_and_a_cancelled_one_saves_and_leaves_no_process(
    titan: Callable[..., Any], slurm: dict[str, str], tmp_path: Path
) -> None:
    run, saves = tmp_path / "runs/y", ("--checkpoint.enable", "--checkpoint.interval=2", "--training.steps=9000")
    job = submitted(titan, slurm, "y", "--metrics.log_freq=1", *saves)
    assert wait_for(lambda: saved_since_it_resumed(run, starts=1))
    asked(slurm, "scontrol", "requeue", job)
    # Slurm holds a job that is requeued for two minutes.
    assert wait_for(lambda: asked(slurm, "squeue", "-h", "-j", job, "-o", "%T") == "PENDING")
    asked(slurm, "scontrol", "update", f"JobId={job}", "StartTime=now")
    assert wait_for(lambda: saved_since_it_resumed(run, starts=2))
    asked(slurm, "scancel", job)
    assert wait_for(lambda: asked(slurm, "squeue", "-h", "-j", job) == "")
    assert of_job(job, slurm) == []
    assert json.loads((run / "launcher.json").read_text("utf-8"))["exit_code"] == 143
    state = Follower(run).read()
    assert (state.step, state.starts) == (state.saved_step, 2), "what was done last was saved"
    events, _ = read_new(event_file(run, 0))
    steps = [event["step"] for event in events if event["kind"] == "step"]
    resumed = next(event["resumed_from"] for event in events if event.get("resumed_from") is not None)
    assert steps == list(range(1, len(steps) + 1)), f"each step once, over the start at {resumed}"


@pytest.mark.usefixtures("usual_port")
def test_srun_starts_a_launch_on_each_node_of_an_allocation(
    titan_command: tuple[str, ...], slurm: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "titan").write_text(f'#!/bin/sh\nexec {shlex.join(titan_command)} "$@"\n', "utf-8")
    (tmp_path / "titan").chmod(0o755)
    small = "--preset quickstart --cluster.gpus_per_node=1 --training.steps=2 --lr_scheduler.warmup_steps=1"
    path = f"{tmp_path}{os.pathsep}{slurm['PATH']}"
    ran = subprocess.run(
        ["srun", "--nodes=2", "--ntasks-per-node=1", "bash", "-c", f"{ON_EACH_NODE} {small}"],
        env=os.environ | slurm | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.count("done: 2 of 2 steps in ")) == (0, 2), ran.stderr


def test_the_line_for_srun_is_the_one_that_readme_shows() -> None:
    shown = " ".join((Path(__file__).parents[3] / "README.md").read_text("utf-8").replace("\\\n", " ").split())
    assert ON_EACH_NODE.removeprefix("titan launch --name z ") in shown
