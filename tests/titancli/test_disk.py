"""Room for checkpoints on the disk that will hold a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.committed import Checkpoints
from engine.checkpoint.places import place
from engine.rules import check
from engine.sources import Flag, load
from titancli.disk import Disk, decimal, free_bytes_at, look_at_disk, room_finding

GB = 10**9
KEEP_3 = {"checkpoint.enable": "true", "checkpoint.keep_latest_k": "3", "checkpoint.interval": "100"}


def disk_of_8b(
    free_gb: float, *, there: tuple[int, ...] = (), folder: Path = Path("x"), **keys: str
) -> tuple[Any, Disk]:
    """The loaded config of fsdp-8b that keeps 3 checkpoints, and its disk with so much free."""
    dotted = KEEP_3 | {key.replace("__", "."): value for key, value in keys.items()}
    loaded = load(preset="fsdp-8b", flags=[Flag(key, value, f"--{key}") for key, value in dotted.items()], environ={})
    plan = check(loaded).plan
    assert plan is not None
    own = Checkpoints(folder=folder, committed=there)
    return loaded, look_at_disk(loaded, plan, own, free_bytes=lambda _: round(free_gb * GB))


def test_c36_a_disk_of_300_gb_is_told_with_both_numbers() -> None:
    loaded, disk = disk_of_8b(300)
    finding = room_finding(loaded, disk, severity="warning")
    assert not disk.has_room
    assert finding.message == (
        "checkpoints of 96.36 GB take 385.5 GB at their peak (3 kept + 1 being written), "
        f"and {Path.cwd()} has 300 GB free"
    )
    assert (finding.rule, finding.key, finding.source) == (
        "M520",
        "checkpoint.keep_latest_k",
        "flag --checkpoint.keep_latest_k",
    )
    assert finding.fix.startswith("set checkpoint.keep_latest_k to 2 (289.1 GB at the peak), or job.dump_folder to ")


def test_c36_what_is_offered_fits() -> None:
    assert disk_of_8b(300, checkpoint__keep_latest_k="2")[1].has_room


def test_c36_one_checkpoint_is_told_in_both_units() -> None:
    assert disk_of_8b(400)[1].text.startswith("96.36 GB (89.75 GiB) each; 385.5 GB at their peak")


@pytest.mark.parametrize(("free_gb", "has_room"), [(385.4, False), (385.5, True)])
def test_room_is_judged_by_the_peak(free_gb: float, has_room: bool) -> None:
    assert disk_of_8b(free_gb)[1].has_room is has_room


def test_checkpoints_that_stand_already_need_no_room_again() -> None:
    _, disk = disk_of_8b(200, there=(100, 200))
    assert (disk.needed_bytes, disk.has_room) == (2 * disk.saved.one_bytes, True)


def test_what_an_unfinished_save_has_left_counts_as_what_it_holds_and_not_as_a_checkpoint(tmp_path: Path) -> None:
    loaded, whole = disk_of_8b(200, there=(100,))
    (tmp_path / "step-200").mkdir()
    (tmp_path / "step-200" / "__0_0.distcp").write_bytes(b"x" * 1000)
    plan = check(loaded).plan
    assert plan is not None
    own = Checkpoints(folder=tmp_path, committed=(100,), unfinished=(200,))
    disk = look_at_disk(loaded, plan, own, free_bytes=lambda _: GB)
    assert disk.needed_bytes == whole.needed_bytes - 1000
    assert "; 1 of them there already" in disk.text


def test_a_run_that_saves_less_often_than_it_keeps_needs_less_and_says_what_a_longer_one_takes() -> None:
    _, disk = disk_of_8b(200, checkpoint__interval="500")
    assert disk.has_room
    assert "192.7 GB at their peak (2 in all; 385.5 GB in a longer run, 3 kept + 1 being written)" in disk.text


def test_where_not_two_checkpoints_fit_only_another_disk_is_offered() -> None:
    loaded, disk = disk_of_8b(100)
    assert room_finding(loaded, disk, severity="error").fix.startswith(
        "set job.dump_folder to a folder on a larger disk"
    )


def test_an_export_is_counted_and_named() -> None:
    _, disk = disk_of_8b(400, checkpoint__last_save_in_hf="true")
    assert "417.6 GB at their peak (3 kept + 1 being written and 32.12 GB of export)" in disk.text
    assert not disk.has_room


def test_a_disk_that_does_not_tell_is_not_found_too_small(tmp_path: Path) -> None:
    loaded, _ = disk_of_8b(1)
    plan = check(loaded).plan
    assert plan is not None
    disk = look_at_disk(loaded, plan, Checkpoints(folder=tmp_path), free_bytes=lambda _: None)
    assert disk.has_room
    assert "n/a free in" in disk.text


def test_the_disk_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert disk_of_8b(1, folder=tmp_path / "runs" / "x" / "checkpoints")[1].place == tmp_path


def test_a_folder_that_is_not_there_does_not_tell(tmp_path: Path) -> None:
    assert free_bytes_at(tmp_path / "gone") is None
    assert (free_bytes_at(tmp_path) or 0) > 0


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(96_363_134_976, "96.36 GB"), (300 * GB, "300 GB"), (999, "999 B"), (24_871_680, "24.87 MB"), (0, "0 B")],
)
def test_sizes_are_as_disks_are_sold(size_bytes: int, text: str) -> None:
    assert decimal(size_bytes) == text


def test_what_a_bucket_has_free_is_not_known_and_not_guessed() -> None:
    store = place("memory://bucket/run", key="checkpoint.folder")
    _, disk = disk_of_8b(1, folder=store)
    told = replace(disk, free_bytes=free_bytes_at(disk.place))
    assert (told.place, told.free_bytes, told.has_room) == (store, None, True)
    assert told.text.endswith("what is free is not known: a store, memory://bucket/run, does not tell")
    assert (told.to_json()["folder"], told.to_json()["free_bytes"]) == ("memory://bucket/run", None)


def test_validate_warns_of_a_disk_that_is_too_small(titan: Callable[..., Any]) -> None:
    # 405B with all of a thousand checkpoints kept: no disk that this runs on has 4.9 PB.
    words = ("--checkpoint.enable", "--checkpoint.keep_latest_k", "0", "--checkpoint.interval", "1", "--json")
    ran = titan("validate", "--preset", "3d-405b", *words)
    told = json.loads(ran.out)
    assert (ran.code, [finding["rule"] for finding in told["findings"]]) == (0, ["M520"])
    assert "4.87 PB at their peak (1,000 in all)" in told["findings"][0]["message"]
    assert told["here"]["disk"]["needed_bytes"] == 1000 * told["here"]["disk"]["checkpoint_bytes"]


def test_without_checkpoints_no_disk_is_looked_at(titan: Callable[..., Any]) -> None:
    assert json.loads(titan("validate", "--preset", "3d-405b", "--json").out)["here"]["disk"] is None
