"""An NVML in plain objects: GPUs with memory, processes, MIG instances and faults, asked as the driver is."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class FakeError(Exception):
    """What NVML raises."""

    def __init__(self, value: int, text: str) -> None:
        self.value = value
        super().__init__(text)


@dataclass
class FakeGpu:
    """One GPU; `pids` are its processes and what each holds, `lost` what it answers to everything."""

    uuid: str
    name: str = "NVIDIA H200"
    total: int = 143_771 << 20
    reserved: int = 614 << 20
    pids: dict[int, int | None] = field(default_factory=dict)
    used: int = 0
    mode: int = 0
    mig: bool | None = False
    instances: list[FakeGpu] = field(default_factory=list)
    lost: str = ""
    links: int = 18
    ecc: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    cores: int = 16_896
    place: int = 0


class FakeNvml:
    """The functions that titan calls; `lacks` names those that an older NVML has not."""

    NVMLError = FakeError
    nvmlMemory_v2 = 2

    def __init__(self, *gpus: FakeGpu, lacks: tuple[str, ...] = (), init: FakeError | None = None) -> None:
        self._gpus, self._lacks, self._init = gpus, lacks, init
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "_lacks") if name.startswith("nvml") else False:
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise self._init
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13_000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self._gpus[index]
        if gpu.lost:
            raise FakeError(15, gpu.lost)
        return gpu

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:
        del version
        used = gpu.used or sum(size or 0 for size in gpu.pids.values())
        return SimpleNamespace(total=gpu.total, free=gpu.total - gpu.reserved - used, reserved=gpu.reserved)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        del gpu
        return 9, 0

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:
        if gpu.links == 0:
            raise FakeError(3, "Not Supported")
        return int(link < gpu.links)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu) -> int:
        del gpu
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:
        del gpu
        return 16

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:
        return gpu.mode

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in gpu.pids.items()]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        if gpu.mig is None:
            raise FakeError(3, "Not Supported")
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        del gpu
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, place: int) -> FakeGpu:
        if place >= len(gpu.instances):
            raise FakeError(6, "Not Found")
        return gpu.instances[place]

    def nvmlDeviceGetGpuInstanceId(self, gpu: FakeGpu) -> int:
        return gpu.place

    def nvmlDeviceGetComputeInstanceId(self, gpu: FakeGpu) -> int:
        del gpu
        return 0

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0), "uncorrected, since the driver was loaded"
        return gpu.ecc

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        return gpu.rows

    def nvmlDeviceGetNumGpuCores(self, gpu: FakeGpu) -> int:
        return gpu.cores

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, clock: int) -> int:
        del gpu, clock
        return 1980


def slices(uuid: str, *profiles: str) -> FakeGpu:
    """An H200 in MIG mode, with an instance of each profile; `1g.18gb` has 18 GB."""
    parts = [
        FakeGpu(
            uuid=f"MIG-{uuid}-{place}",
            name=f"NVIDIA H200 MIG {profile}",
            total=int(profile.partition(".")[2].removesuffix("gb")) * GIB,
            reserved=0,
            place=place + 7,
        )
        for place, profile in enumerate(profiles)
    ]
    return FakeGpu(uuid=f"GPU-{uuid}", mig=True, instances=parts)
