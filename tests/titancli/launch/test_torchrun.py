"""The torchrun command and its environment."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from titancli.launch.meeting import Meeting
from titancli.launch.torchrun import Command, command

OUTER = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "0",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_ERROR_FILE": "/tmp/x",
    "PET_NNODES": "4",
    "PYTHON_EXEC": "/bin/false",
    "TITAN_TRAINING__STEPS": "5",
}
KEPT = {"NCCL_DEBUG": "INFO", "HF_HOME": "/hf", "CUDA_VISIBLE_DEVICES": "4,6", "PATH": "/usr/bin", "LANG": "C"}


def made(environ: dict[str, str], run: Path = Path("runs/x"), threads: int = 4) -> Command:
    return command(run, processes=2, threads=threads, grace_s=30.0, environ=environ)


def test_c44_nothing_of_an_outer_launcher_reaches_the_workers() -> None:
    environment = made(OUTER | KEPT).environment(OUTER | KEPT)
    assert environment.keys() & OUTER.keys() == set()
    assert environment.items() >= KEPT.items()


def test_threads_are_shared_out_unless_the_person_has_set_them() -> None:
    assert made({}).environment({})["OMP_NUM_THREADS"] == "4"
    assert made({"OMP_NUM_THREADS": "7"}).environment({"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_run_folder_is_absolute_so_that_the_command_works_from_anywhere() -> None:
    words = made({}).words
    assert words[-1] == str(Path.cwd() / "runs" / "x")
    assert f"--log-dir={Path.cwd() / 'runs' / 'x' / 'logs'}" in words


def test_c44_port_is_any_free_one() -> None:
    assert "--rdzv-endpoint=127.0.0.1:0" in made({}).words


def together(rank: int, environ: dict[str, str], **changes: Any) -> Command:
    meeting = replace(Meeting(nodes=3, rank=rank, host="node0", port=29500, interface="eth1"), **changes)
    return command(
        Path("/runs/x"), processes=2, threads=1, grace_s=30.0, environ=environ, meeting=meeting, timeout_s=12.5
    )


def test_rank_order_is_that_of_the_nodes_by_the_static_rendezvous() -> None:
    words = together(2, {}).words
    assert words[3:11] == (
        "--nnodes=3",
        "--nproc-per-node=2",
        "--rdzv-backend=static",
        "--rdzv-endpoint=node0:29500",
        "--node-rank=2",
        "--rdzv-id=x",
        "--rdzv-conf=timeout=13",
        "--max-restarts=0",
    )


def test_each_node_has_logs_of_its_own_in_the_folder_they_share() -> None:
    assert "--log-dir=/runs/x/logs/node-1" in together(1, {}).words
    assert "--log-dir=/runs/x/logs" in together(0, {}, nodes=1).words


def test_gloo_takes_the_interface_that_leads_to_the_others_unless_the_person_has_set_one() -> None:
    assert together(1, {}).environment({})["GLOO_SOCKET_IFNAME"] == "eth1"
    set_by_hand = {"GLOO_SOCKET_IFNAME": "ib0"}
    assert together(1, set_by_hand).environment(set_by_hand)["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in together(1, {}, interface=None).environment({})
    assert "NCCL_SOCKET_IFNAME" not in together(1, {}).environment({})


@pytest.mark.parametrize("folder", ["plain", "with space", "quo'te", "dollar$HOME"])
def test_shell_reads_the_printed_command_back(tmp_path: Path, folder: str) -> None:
    expected = made(OUTER, run=tmp_path / folder / "x")
    assert shlex.split(str(expected))[-len(expected.words) :] == list(expected.words)


def test_printed_command_gives_the_same_environment_as_the_started_one() -> None:
    show = (sys.executable, "-c", "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))")
    environ = OUTER | KEPT
    wanted = made(environ)
    printed = Command(words=show, removed=wanted.removed, added=wanted.added)
    ran = subprocess.run(["/bin/sh", "-c", str(printed)], env=environ, capture_output=True, text=True, check=True)
    # The shell adds PWD and its like to any environment.
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    seen = set(ran.stdout.strip("[]\n").replace("'", "").split(", ")) - of_the_shell
    assert seen == wanted.environment(environ).keys()
