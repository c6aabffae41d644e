"""One run on several machines: launches in network namespaces, each with its own address and host name."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts import IMPOSSIBLE, Host, are_possible, hosts
from waiting import wait_until

from titancli.monitor.follow import Follower
from titancli.rank_logs import rank_logs

SMALL_RUN = ("--preset", "quickstart", "--training.steps", "6", "--lr_scheduler.warmup_steps", "1")
PORT = 29500


@pytest.fixture
def two() -> Iterator[tuple[Host, ...]]:
    if not are_possible():
        pytest.skip(IMPOSSIBLE)
    with hosts(2) as made:
        yield made


def launched(
    titan: tuple[str, ...], machines: tuple[Host, ...], folders: list[Path], *flags: str
) -> list[subprocess.Popen[str]]:
    """`titan launch` on each of them, of a run named x with one process a machine."""
    place = ("--nnodes", str(len(machines)), "--rdzv-endpoint", f"{machines[0].address}:{PORT}", "--name", "x")
    words = (*titan, "launch", *SMALL_RUN, *place, "--cluster.gpus_per_node", "1", *flags)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return [
        host.start((*words, "--node-rank", str(number)), cwd=folder, environ=clean_environment())
        for number, (host, folder) in enumerate(zip(machines, folders, strict=True))
    ]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("TITAN_", "COLUMNS"))}


def of_run(folder: Path) -> list[int]:
    """Living processes that work under a folder."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(process.info["pid"])
    return found


@pytest.mark.world
def test_two_machines_train_as_one_does(
    titan_command: tuple[str, ...], two: tuple[Host, ...], tmp_path: Path, finished_run: tuple[Path, Any]
) -> None:
    processes = launched(titan_command, two, [tmp_path, tmp_path])
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    run, (alone, _) = tmp_path / "runs" / "x", finished_run
    state = Follower(run).read()
    assert [state.ranks[rank].host for rank in (0, 1)] == ["host0", "host1"]
    assert state.losses == Follower(alone).read().losses
    assert [logs.folder.parts[-4] for logs in rank_logs(run).values()] == ["node-0", "node-1"]
    for out, err in told:
        assert "\n  rank 0  host0  cpu\n  rank 1  host1  cpu\n" in out
        assert "\ndone: 6 of 6 steps in " in out
        assert err == ""
    assert not [path for path in run.iterdir() if path.name.startswith(".met-")]
    assert of_run(tmp_path) == []


@pytest.mark.world
def test_machine_that_is_cut_off_is_named_on_both_sides(
    titan_command: tuple[str, ...], two: tuple[Host, ...], tmp_path: Path
) -> None:
    disks = [tmp_path / host.name for host in two]
    flags = ("--training.steps", "100000", "--metrics.log_freq", "1", "--comm.train_timeout_seconds", "4")
    processes = launched(titan_command, two, disks, *flags)
    run = disks[0] / "runs" / "x"
    wait_until(lambda: Follower(run).read().step is not None or any(each.poll() is not None for each in processes))
    two[1].cut_off()
    (out, err), (_, err_there) = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert "error[R202]: rank 1 failed first: LostRank: " in err
    assert "host1" in err
    assert "the launcher of node 1 (host1) has not answered for 4 s" in out
    assert "LostRank" in err_there
    assert two[0].address in err_there
    assert of_run(tmp_path) == []


def test_machines_that_share_no_disk_keep_no_torn_checkpoints(
    titan_command: tuple[str, ...], two: tuple[Host, ...], tmp_path: Path
) -> None:
    disks = [tmp_path / host.name for host in two]
    processes = launched(titan_command, two, disks, "--checkpoint.enable")
    told = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "checkpoints would be torn over the disks of all nodes" in told[1]
    assert "error[R156]: node 1 (host1) cannot go on: " in told[0]
    assert [[*(disk / "runs").glob("*")] for disk in disks] == [[], []]


def test_c44_explicit_port_that_is_taken_is_refused_before_anything_is_made(titan: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ran = titan("launch", *SMALL_RUN, "--rdzv-endpoint", f"127.0.0.1:{port}")
    assert ran.code == 2
    assert f"error[R155]: port {port} of this machine is taken by process " in ran.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_c44_head_that_does_not_resolve_is_named_on_every_node(titan: Any, tmp_path: Path, rank: str) -> None:
    place = ("--nnodes", "2", "--node-rank", rank, "--rdzv-endpoint", "no-such-host.invalid:29500", "--name", "x")
    ran = titan("launch", *SMALL_RUN, *place, "--cluster.gpus_per_node", "1")
    assert ran.code == 2
    assert "error[R146]: the host no-such-host.invalid of --rdzv-endpoint does not resolve: " in ran.err
    assert not (tmp_path / "runs").exists()


def test_mistakes_in_flags_are_told_with_those_in_the_config(titan: Any) -> None:
    ran = titan("launch", "--preset", "quickstart", "--nnodes", "2", "--dry-run", "--detach", "--training.bogus", "3")
    told = [line[6:10] for line in ran.err.splitlines() if line.startswith("error[")]
    assert (ran.code, told) == (2, ["R123", "R141", "R143", "R145", "P102", "S101"])


def test_dry_run_prints_what_would_run_on_this_node(titan: Any, tmp_path: Path) -> None:
    place = ("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:29500", "--name", "x", "--dry-run")
    ran = titan("launch", *SMALL_RUN, *place, "--cluster.gpus_per_node", "1")
    assert ran.code == 0, ran.err
    assert "GLOO_SOCKET_IFNAME=lo" in ran.out
    assert "--rdzv-backend=static --rdzv-endpoint=127.0.0.1:29500 --node-rank=1" in ran.out
    assert f"--log-dir={tmp_path}/runs/x/logs/node-1" in ran.out
    assert not (tmp_path / "runs").exists()
