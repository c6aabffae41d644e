"""An NVML in plain objects: GPUs with memory, processes, MIG instances and faults, asked as the driver is."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
    """One GPU; `pids` are its processes and what each holds, `lost` what it answers to everything.

    `refuses` are functions that fail for it, by the code of the error; `gpm` are figures by their number, None where it
    has no GPM; `counts` are fields by their number; `card` is the GPU that a MIG instance is a part of.
    """

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
    refuses: dict[str, int] = field(default_factory=dict)
    gpm: dict[int, float] | None = None
    gpm_refuses: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    narrow: frozenset[int] = frozenset()
    millijoules: int = 0
    milliwatts: int = 0
    busy: int = 0
    pcie_kb: tuple[int, int] = (0, 0)
    card: FakeGpu | None = None
    samples: int = 0


class FakeMetrics:
    """What GPM is asked, and answers; nvmlGpmMetricsGet_t."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: dict[str, Any] = {}
        self.sample2: dict[str, Any] = {}
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]


class FakeNvml:
    """The functions that titan calls; `lacks` names those that an older NVML has not.

    None answers while `answers` is not set; `hangs` is set by the first that is asked then.
    """

    NVMLError = FakeError
    nvmlMemory_v2 = 2
    NVML_GPM_METRICS_GET_VERSION = 1
    c_nvmlGpmMetricsGet_t = FakeMetrics

    def __init__(self, *gpus: FakeGpu, lacks: tuple[str, ...] = (), init: FakeError | None = None) -> None:
        self._gpus, self._lacks, self._init = gpus, lacks, init
        self.open = 0
        self.answers = threading.Event()
        self.hangs = threading.Event()
        self.answers.set()
        for gpu in gpus:
            for instance in gpu.instances:
                instance.card = gpu

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        if name in self._lacks:
            raise AttributeError(name)
        found = object.__getattribute__(self, name)
        return self._guarded(name, found) if callable(found) else found

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the GPU in question lets it answer."""

        def ask(*arguments: Any) -> Any:
            if not self.answers.is_set():
                self.hangs.set()
            self.answers.wait(10)
            gpu = arguments[0] if arguments else None
            if isinstance(gpu, FakeGpu) and name in gpu.refuses:
                raise FakeError(gpu.refuses[name], f"refused {name}")
            if isinstance(gpu, FakeGpu) and gpu.lost:
                raise FakeError(15, gpu.lost)
            return function(*arguments)

        return ask

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
        used = gpu.used or sum(size or 0 for size in gpu.pids.values())
        told = used + (0 if version else gpu.reserved)
        return SimpleNamespace(total=gpu.total, free=gpu.total - gpu.reserved - used, reserved=gpu.reserved, used=told)

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

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        everything = [each for gpu in self._gpus for each in (gpu, *gpu.instances)]
        found = [gpu for gpu in everything if gpu.uuid == uuid]
        if not found:
            raise FakeError(6, "Not Found")
        if found[0].lost:
            raise FakeError(15, found[0].lost)
        return found[0]

    def nvmlDeviceIsMigDeviceHandle(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(value=int(gpu.card is not None))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        assert gpu.card is not None, "asked of a MIG instance only"
        return gpu.card

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> SimpleNamespace:
        assert gpu.card is None, "asked of a whole GPU only"
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> dict[str, Any]:
        return {}

    def nvmlGpmSampleFree(self, sample: dict[str, Any]) -> None:
        assert "freed" not in sample
        sample["freed"] = True

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: dict[str, Any]) -> None:
        assert gpu.card is None
        assert gpu.gpm is not None
        gpu.samples += 1
        sample.update(number=gpu.samples, of=gpu)

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, instance: int, sample: dict[str, Any]) -> None:
        part = next(each for each in gpu.instances if each.place == instance)
        part.samples += 1
        sample.update(number=part.samples, of=part)

    def nvmlGpmMetricsGet(self, asked: FakeMetrics) -> FakeMetrics:
        first, second = asked.sample1, asked.sample2
        assert (asked.version, first["of"]) == (1, second["of"])
        assert first["number"] < second["number"], "the older sample comes first"
        gpu: FakeGpu = second["of"]
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = gpu.gpm_refuses.get(metric.metricId, 0)
            metric.value = (gpu.gpm or {}).get(metric.metricId, 0.0)
        return asked

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=gpu.busy, memory=gpu.busy)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return gpu.milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return gpu.millijoules

    def nvmlDeviceGetPcieThroughput(self, gpu: FakeGpu, counter: int) -> int:
        return gpu.pcie_kb[counter]

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, wanted: list[tuple[int, int]]) -> list[SimpleNamespace]:
        return [self._field(gpu, field, scope) for field, scope in wanted]

    def _field(self, gpu: FakeGpu, field: int, scope: int) -> SimpleNamespace:
        assert (field in (138, 139)) == (scope == 0xFFFF_FFFF), "of all links"
        code = 0 if field in gpu.counts else 3
        value = SimpleNamespace(**dict.fromkeys(("uiVal", "ullVal"), gpu.counts.get(field, 0)))
        return SimpleNamespace(nvmlReturn=code, valueType=1 if field in gpu.narrow else 3, value=value)


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
