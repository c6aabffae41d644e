"""This machine: visible GPUs, processors, memory, and limits of the system."""

from __future__ import annotations

import resource
from pathlib import Path

from engine.cards import driver
from engine.machine import limits, processor, this_machine

GIB = 1 << 30


def test_this_machine_has_processors_and_memory() -> None:
    here = this_machine()
    assert here.cpus >= 1
    assert here.memory_bytes > GIB // 4
    assert len(here.gpu_names) == len(here.gpu_memory_bytes)
    assert (here.kind == "gpu") == bool(here.gpu_names)


def test_gpus_are_those_that_the_driver_shows() -> None:
    assert [card.name for card in driver().cards] == list(this_machine().gpu_names)
    assert (driver().version is None) or driver().cuda is not None


def test_a_folder_that_is_not_there_yet_has_the_room_of_its_parent(tmp_path: Path) -> None:
    there, to_be = limits(tmp_path), limits(tmp_path / "runs" / "deep")
    assert there.free_disk_bytes > 0
    assert abs(there.free_disk_bytes - to_be.free_disk_bytes) < GIB


def test_limits_are_those_that_the_process_has(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits(tmp_path).open_files == (None if soft == resource.RLIM_INFINITY else soft)


def test_the_processor_has_a_name() -> None:
    assert processor()
