"""A checkpoint is there whole or not at all, whatever befalls those who write it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fresh import fresh
from gloo_pool import GlooPool
from synthetic import tiny

from engine.checkpoint.agreed import group_of_all
from engine.checkpoint.committed import MANIFEST, checkpoints_in, damage, is_committed
from engine.checkpoint.manifest import Manifest, manifest_of, read_manifest
from engine.checkpoint.store import LoadFailed, SaveFailed, load, save
from engine.planner.plan import plan


def manifest(step: int) -> Manifest:
    """That of a tiny run after a step."""
    config = tiny()
    return manifest_of(config, plan(config), step=step, samples=8 * step, updates=step, data={}, versions={})


def tensors(value: float, count: int = 1000) -> dict[str, torch.Tensor]:
    """A table of two names, one of them of this rank alone."""
    return {"shared": torch.full((count,), value), f"of-{dist.get_rank()}": torch.full((count,), value)}


def write(folder: Path, step: int, *, count: int = 1000) -> Manifest:
    """Saves a step in `folder`, in a group of its own."""
    group = group_of_all(30)
    return save(tensors(float(step), count), folder / f"step-{step}", manifest(step), group=group, needed_bytes=8000)


# ---- killed in mid-save ------------------------------------------------------------------------

MOMENTS = ("the folder", "the shards", ".metadata", "the manifest's bytes", "the names", "the manifest's name")
"""What has just reached the disk when a save is killed: one moment for each time that it waits for the disk."""


def killed_at_every_moment(folder: str) -> list[dict[str, Any]]:
    """Forks a process for each moment, which commits step 1 and is killed in saving step 2; then one that goes on."""
    found = []
    for moment in range(1, len(MOMENTS) + 1):
        place = Path(folder) / str(moment)
        killed = _forked(lambda at=moment, place=place: _save_and_die(place, at))
        before = checkpoints_in(place)
        ended = _forked(lambda place=place: _load_and_save_again(place))
        found.append(
            {
                "killed": killed,
                "committed": before.committed,
                "unfinished": before.unfinished,
                "resumed": ended,
                "after": checkpoints_in(place).committed,
            }
        )
    return found


def _forked(work: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _save_and_die(place: Path, moment: int) -> None:
    write(place, 1)
    real, calls = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal calls
        real(handle)
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync
    write(place, 2)


def _load_and_save_again(place: Path) -> None:
    newest = checkpoints_in(place).newest
    assert newest is not None
    read = tensors(0.0)
    load(read, place / f"step-{newest}", group=group_of_all(30))
    assert all(bool((value == newest).all()) for value in read.values())
    write(place, 2)


def test_c32_a_save_that_is_killed_leaves_the_step_before(tmp_path: Path) -> None:
    for moment, found in zip(MOMENTS, fresh(killed_at_every_moment, folder=str(tmp_path)), strict=True):
        assert found["killed"] == -signal.SIGKILL, moment
        is_there = moment == MOMENTS[-1]
        assert found["committed"] == ((1, 2) if is_there else (1,)), moment
        assert found["unfinished"] == (() if is_there else (2,)), moment
        assert (found["resumed"], found["after"]) == (0, (1, 2)), moment


# ---- one rank that cannot write ----------------------------------------------------------------


def fail_on_a_rank(folder: str, rank: int) -> dict[str, Any]:
    """One rank may write no file beyond 64 KiB; what each rank says of the save, and what is left."""
    place = Path(folder)
    write(place, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        write(place, 2, count=100_000)
    except SaveFailed as failure:
        found: dict[str, Any] = {"message": str(failure), "rank": failure.rank, "host": failure.host}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    left = checkpoints_in(place)
    dist.barrier()
    write(place, 2, count=100_000)
    return found | {"left": (left.committed, left.unfinished), "after": checkpoints_in(place).committed}


@pytest.mark.world
def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(gloo: GlooPool, tmp_path: Path) -> None:
    ranks = gloo.run(3, fail_on_a_rank, folder=str(tmp_path), rank=1)
    assert len({rank["message"] for rank in ranks}) == 1
    for rank in ranks:
        assert rank["message"].startswith(
            f"saving {tmp_path}/step-2 failed on rank 1 (host {os.uname().nodename}): file too large; "
            "its tensors take 8,000 bytes, its files somewhat more, and "
        )
        assert rank["rank"] == 1
        assert rank["left"] == ((1,), ())
        assert rank["after"] == (1, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: str) -> list[str]:
    """Saves more than the disk holds; what every rank says, and the names that are left."""
    write(Path(folder), 1)
    try:
        write(Path(folder), 2, count=200_000)
    except SaveFailed as failure:
        return [str(failure), *sorted(os.listdir(folder))]
    return []


@pytest.mark.world
def test_a_full_disk_is_named_with_what_is_free(small_disk: Path, gloo: GlooPool) -> None:
    first, second = gloo.run(2, fill, folder=str(small_disk))
    assert first == second
    message, *left = first
    assert "no space left on device; its tensors take 8,000 bytes, its files somewhat more, and 1,0" in message
    assert left == ["step-1"]


# ---- what is read ------------------------------------------------------------------------------


def tear(folder: str) -> list[str]:
    """Cuts one shard short behind the manifest's back, then loads; what each rank says."""
    place = Path(folder)
    write(place, 1)
    shard = place / "step-1" / f"__{dist.get_world_size() - 1}_0.distcp"
    if dist.get_rank() == 0:
        os.truncate(shard, 100)
    dist.barrier()
    told = [damage(place / "step-1")]
    try:
        load(tensors(0.0), place / "step-1", group=group_of_all(30))
    except LoadFailed as failure:
        told.append(str(failure))
    return told


@pytest.mark.world
def test_a_shard_that_is_cut_short_is_damage_and_loads_on_no_rank(gloo: GlooPool, tmp_path: Path) -> None:
    ranks = gloo.run(2, tear, folder=str(tmp_path))
    assert ranks[0] == ranks[1]
    harm, message = ranks[0]
    assert harm.startswith("its file __1_0.distcp has 100 bytes, and ")
    assert message.startswith(f"loading {tmp_path}/step-1 failed on rank ")


def commit(folder: str) -> dict[str, Any]:
    """Saves a step twice over what a save left that never ended; what the folder holds."""
    place = Path(folder)
    if dist.get_rank() == 0:
        (place / "step-1").mkdir()
        (place / "step-1" / "debris").touch()
    dist.barrier()
    written = write(place, 1)
    return {"names": sorted(os.listdir(place / "step-1")), "manifest": written}


@pytest.mark.world
def test_a_manifest_tells_every_file_with_its_bytes(gloo: GlooPool, tmp_path: Path) -> None:
    for rank in gloo.run(2, commit, folder=str(tmp_path)):
        checkpoint = tmp_path / "step-1"
        assert rank["names"] == [".metadata", "__0_0.distcp", "__1_0.distcp", MANIFEST]
        assert rank["manifest"] == read_manifest(checkpoint)
        files = {name: (checkpoint / name).stat().st_size for name in rank["names"] if name != MANIFEST}
        assert rank["manifest"].files == files
        assert rank["manifest"].bytes == sum(files.values())
        assert is_committed(checkpoint)


def commit_again(folder: str) -> list[str]:
    """Saves one step twice."""
    write(Path(folder), 1)
    write(Path(folder), 1)
    return sorted(os.listdir(folder))


@pytest.mark.world
def test_a_committed_checkpoint_is_kept_where_its_step_is_saved_again(gloo: GlooPool, tmp_path: Path) -> None:
    assert gloo.run(1, commit_again, folder=str(tmp_path)) == [["step-1", "step-1.aside-1"]]
