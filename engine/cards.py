"""The GPUs of this machine that ranks will see, in their order, as the driver (NVML) shows them; without torch.

Knows NVML, MIG instances and what the driver says is wrong with a GPU. Does not know what is enough (titan doctor), nor
what a GPU can do (hardware). What a driver, or an older NVML, does not tell is None or left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.nvml import NO_DRIVER, Nvml, nvlinks, second_form, text, words
from engine.visible import VARIABLE, Installed, Selection, Shown, select

ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
ComputeMode: TypeAlias = Literal["default", "exclusive", "prohibited"]

_MODES: dict[int, ComputeMode] = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_NOTHING = Selection(order=())
_PROFILE = re.compile(r"\bMIG (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A process that has work on a GPU; its id is the host's, which in a container is another than there."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU that ranks see, or one MIG instance of it; what the driver does not tell is None.

    `index` is nvidia-smi's. `reserved_bytes` are the driver's own. Of an instance memory is its own, `instance` its
    profile (1g.18gb) and `card_uuid` the GPU that it is a part of. `trouble` is why it cannot be used, `doubts` what
    else the driver says against it.
    """

    name: str
    uuid: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None
    nvlinks: int | None
    pcie_generation: int | None
    pcie_width: int | None
    index: int = 0
    reserved_bytes: int = 0
    instance: str | None = None
    card_uuid: str | None = None
    compute_mode: ComputeMode | None = None
    users: tuple[User, ...] = ()
    trouble: str | None = None
    doubts: tuple[str, ...] = ()

    @property
    def taken_bytes(self) -> int:
        """What processes hold of its memory."""
        return max(0, self.memory_bytes - self.free_bytes - self.reserved_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver and the GPUs that ranks see; `version` is None where there is none.

    `trouble` is what it says where it is there and does not work. `installed` counts the GPUs of the machine, `visible`
    is the value of CUDA_VISIBLE_DEVICES, and `selection` what is to be said of it.
    """

    version: str | None = None
    cuda: str | None = None
    cards: tuple[Card, ...] = ()
    trouble: str | None = None
    installed: int = 0
    visible: str | None = None
    selection: Selection = _NOTHING


def driver(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Driver:
    """The driver and the GPUs that ranks started in this environment see; empty without a driver."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as trouble:
        missing = getattr(trouble, "value", NO_DRIVER[0]) in NO_DRIVER
        return Driver() if missing else Driver(trouble=words(trouble))
    try:
        return _driver(Nvml(nvml), environ)
    except nvml.NVMLError as trouble:
        return Driver(trouble=words(trouble))
    finally:
        nvml.nvmlShutdown()


def _driver(nvml: Nvml, environ: Mapping[str, str]) -> Driver:
    gpus = [_Gpu.of(nvml, index) for index in range(int(nvml.module.nvmlDeviceGetCount()))]
    setting = environ.get(VARIABLE)
    selection = select(setting, [gpu.installed for gpu in gpus], order=_cuda_order(nvml, gpus, environ))
    cuda = nvml.told("nvmlSystemGetCudaDriverVersion")
    version = nvml.told("nvmlSystemGetDriverVersion")
    return Driver(
        version=None if version is None else text(version),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        cards=tuple(_card(nvml, gpus[shown.index], shown) for shown in selection.order),
        installed=len(gpus),
        visible=setting,
        selection=selection,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """A GPU of the machine by NVML's handles; one that cannot be asked any more has none, and `trouble`."""

    handle: Any
    instances: tuple[Any, ...]
    installed: Installed
    trouble: str | None = None

    @classmethod
    def of(cls, nvml: Nvml, index: int) -> _Gpu:
        try:
            handle = nvml.module.nvmlDeviceGetHandleByIndex(index)
            uuid = text(nvml.module.nvmlDeviceGetUUID(handle))
        except nvml.module.NVMLError as trouble:
            return cls(
                handle=None,
                instances=(),
                installed=Installed(index=index, uuid=f"GPU {index}"),
                trouble=words(trouble),
            )
        mode = nvml.told("nvmlDeviceGetMigMode", handle)
        mig = mode is not None and mode[0] == 1
        found = range(nvml.told("nvmlDeviceGetMaxMigDeviceCount", handle) or 0) if mig else range(0)
        asked = (nvml.told("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in found)
        instances = tuple(instance for instance in asked if instance is not None)
        names = tuple(_names(nvml, instance, uuid) for instance in instances)
        return cls(
            handle=handle, instances=instances, installed=Installed(index=index, uuid=uuid, mig=mig, instances=names)
        )


def _names(nvml: Nvml, instance: Any, uuid: str) -> tuple[str, ...]:
    """The names that an instance goes by: its own, and that of drivers before 470."""
    own = nvml.told("nvmlDeviceGetUUID", instance)
    ids = [nvml.told(f"nvmlDeviceGet{kind}InstanceId", instance) for kind in ("Gpu", "Compute")]
    old = () if None in ids else (f"MIG-{uuid}/{ids[0]}/{ids[1]}",)
    return (*(() if own is None else (text(own),)), *old)


def _cuda_order(nvml: Nvml, gpus: Sequence[_Gpu], environ: Mapping[str, str]) -> list[int]:
    """The machine's GPUs as CUDA counts them in titan's workers: nvidia-smi's order, unless the fastest come first.

    Workers ask for PCI_BUS_ID where the person has asked for nothing (engine.__main__).
    """
    order = [gpu.installed.index for gpu in gpus]
    if environ.get(ORDER_VARIABLE) != "FASTEST_FIRST":
        return order
    return sorted(order, key=lambda index: -_speed(nvml, gpus[index].handle))


def _speed(nvml: Nvml, handle: Any) -> int:
    """Cores times clock: CUDA does not say what it goes by, and GPUs of a kind stay in order by either."""
    if handle is None:
        return 0
    cores, clock = nvml.told("nvmlDeviceGetNumGpuCores", handle), nvml.told("nvmlDeviceGetMaxClockInfo", handle, 1)
    return int(cores or 0) * int(clock or 0)


def _card(nvml: Nvml, gpu: _Gpu, shown: Shown) -> Card:
    whole = shown.instance is None
    handle = gpu.handle if whole else gpu.instances[shown.instance or 0]
    uuid = gpu.installed.uuid if whole else gpu.installed.instances[shown.instance or 0][0]
    # A GPU may answer with its name, and be lost when it is asked for more.
    memory, trouble = None, gpu.trouble
    try:
        memory = None if handle is None else nvml.module.nvmlDeviceGetMemoryInfo(handle)
    except nvml.module.NVMLError as lost:
        trouble = words(lost)
    second = None if memory is None else nvml.told("nvmlDeviceGetMemoryInfo", handle, second_form(nvml))
    capability = nvml.told("nvmlDeviceGetCudaComputeCapability", gpu.handle) if gpu.handle is not None else None
    name = None if handle is None else nvml.told("nvmlDeviceGetName", handle)
    name = "a GPU that does not answer" if name is None else text(name)
    return Card(
        name=name,
        uuid=uuid,
        memory_bytes=0 if memory is None else int(memory.total),
        free_bytes=0 if memory is None else int(memory.free),
        reserved_bytes=int(getattr(second, "reserved", 0) or 0),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        nvlinks=nvlinks(nvml, gpu.handle),
        pcie_generation=_number(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu.handle),
        pcie_width=_number(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu.handle),
        index=gpu.installed.index,
        instance=None if whole else _profile(name),
        card_uuid=None if whole else gpu.installed.uuid,
        compute_mode=_MODES.get(_number(nvml, "nvmlDeviceGetComputeMode", gpu.handle) or 0),
        users=_users(nvml, handle),
        trouble=trouble,
        doubts=_doubts(nvml, gpu.handle),
    )


def _number(nvml: Nvml, name: str, handle: Any) -> int | None:
    found = None if handle is None else nvml.told(name, handle)
    return None if found is None else int(found)


def _users(nvml: Nvml, handle: Any) -> tuple[User, ...]:
    running = None if handle is None else nvml.told("nvmlDeviceGetComputeRunningProcesses", handle)
    found = {int(each.pid): getattr(each, "usedGpuMemory", None) for each in running or ()}
    return tuple(User(pid=pid, used_bytes=None if used is None else int(used)) for pid, used in sorted(found.items()))


def _doubts(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    """Memory errors that the GPU has counted: it computes, and may not for long."""
    if handle is None:
        return ()
    doubts: list[str] = []
    uncorrected = nvml.told("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    if uncorrected:
        doubts.append(f"{uncorrected} memory errors that ECC could not correct since it was started")
    rows = nvml.told("nvmlDeviceGetRemappedRows", handle)
    if rows is not None and rows[3]:
        doubts.append("a row of its memory is broken and could not be replaced")
    elif rows is not None and rows[2]:
        doubts.append("a broken row of its memory is replaced only when it is reset")
    return tuple(doubts)


def _profile(name: str) -> str:
    """`1g.18gb` of the name `NVIDIA H200 MIG 1g.18gb`."""
    found = _PROFILE.search(name)
    return name if found is None else found[1]
