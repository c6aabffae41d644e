"""What this machine has, without torch: GPUs as the driver shows them, processors, memory, and what a run leans on.

Knows NVML and the system's own limits. Does not know what is enough (titan doctor), nor what a GPU can do (hardware).
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_SHARED_MEMORY = Path("/dev/shm")
_CPU_TABLE = Path("/proc/cpuinfo")
_MOST_NVLINKS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has."""

    kind: Literal["gpu", "cpu"]
    gpu_names: tuple[str, ...]
    gpu_memory_bytes: tuple[int, ...]
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU that CUDA_VISIBLE_DEVICES leaves; what the driver does not tell is None."""

    name: str
    uuid: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None
    nvlinks: int | None
    pcie_generation: int | None
    pcie_width: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver and its GPUs; `version` is None where there is none."""

    version: str | None = None
    cuda: str | None = None
    cards: tuple[Card, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the system grants a process: None is no limit, or one that it does not tell."""

    shared_memory_bytes: int | None
    locked_memory_bytes: int | None
    open_files: int | None
    free_disk_bytes: int


def this_machine() -> Machine:
    """Looks at the machine titan runs on: visible GPUs through NVML, CPUs and memory through the system."""
    cards = driver().cards
    return Machine(
        kind="gpu" if cards else "cpu",
        gpu_names=tuple(card.name for card in cards),
        gpu_memory_bytes=tuple(card.memory_bytes for card in cards),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def driver() -> Driver:
    """The driver and the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Driver()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = _visible_order(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        return Driver(
            version=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            cards=tuple(_card(pynvml, handles[index], uuids[index]) for index in order),
        )
    except pynvml.NVMLError:
        return Driver()
    finally:
        pynvml.nvmlShutdown()


def _card(nvml: Any, handle: Any, uuid: str) -> Card:
    def told(ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return ask(handle, *arguments)
        except nvml.NVMLError:
            return None

    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = told(nvml.nvmlDeviceGetCudaComputeCapability)
    links = [told(nvml.nvmlDeviceGetNvLinkState, link) for link in range(_MOST_NVLINKS)]
    return Card(
        name=str(nvml.nvmlDeviceGetName(handle)),
        uuid=uuid,
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        nvlinks=None if links[0] is None else sum(link == 1 for link in links),
        pcie_generation=told(nvml.nvmlDeviceGetMaxPcieLinkGeneration),
        pcie_width=told(nvml.nvmlDeviceGetMaxPcieLinkWidth),
    )


def _visible_order(visible: str | None, uuids: list[str]) -> list[int]:
    """Indices that CUDA would show: like CUDA, reading stops at the first entry that names no GPU."""
    if visible is None:
        return list(range(len(uuids)))
    order: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        by_uuid = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if entry.isdigit() and int(entry) < len(uuids):
            order.append(int(entry))
        elif len(by_uuid) == 1:
            order.append(by_uuid[0])
        else:
            break
    return order


def limits(folder: Path) -> Limits:
    """Shared and locked memory, open files, and what is free where `folder` is or will be."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    shared = shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.exists() else None
    return Limits(
        shared_memory_bytes=shared,
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
