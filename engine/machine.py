"""What this machine has, without torch: the GPUs that ranks see, processors, memory, and what a run leans on.

Knows the system's own limits. Does not know how a driver is asked (cards), what is enough (titan doctor), nor what a
GPU can do (hardware).
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.cards import driver

_SHARED_MEMORY = Path("/dev/shm")
_CPU_TABLE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has: of its GPUs those that ranks see, in the order in which they see them."""

    kind: Literal["gpu", "cpu"]
    gpu_names: tuple[str, ...]
    gpu_memory_bytes: tuple[int, ...]
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the system grants a process: None is no limit, or one that it does not tell."""

    shared_memory_bytes: int | None
    locked_memory_bytes: int | None
    open_files: int | None
    free_disk_bytes: int
    free_shared_memory_bytes: int | None = None


def this_machine() -> Machine:
    """Looks at the machine titan runs on: visible GPUs through NVML, CPUs and memory through the system."""
    cards = [card for card in driver().cards if card.trouble is None]
    return Machine(
        kind="gpu" if cards else "cpu",
        gpu_names=tuple(card.name for card in cards),
        gpu_memory_bytes=tuple(card.memory_bytes for card in cards),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def limits(folder: Path) -> Limits:
    """Shared and locked memory, open files, and what is free where `folder` is or will be."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    shared = shutil.disk_usage(_SHARED_MEMORY) if _SHARED_MEMORY.exists() else None
    return Limits(
        shared_memory_bytes=None if shared is None else shared.total,
        free_shared_memory_bytes=None if shared is None else shared.free,
        locked_memory_bytes=_granted(resource.RLIMIT_MEMLOCK),
        open_files=_granted(resource.RLIMIT_NOFILE),
        free_disk_bytes=shutil.disk_usage(there).free,
    )


def _granted(limit: int) -> int | None:
    soft, _ = resource.getrlimit(limit)
    return None if soft == resource.RLIM_INFINITY else soft


def processor() -> str:
    """The processor as it calls itself, or its architecture."""
    if _CPU_TABLE.exists():
        for line in _CPU_TABLE.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
