"""What GPUs are: a table of published figures, and what this machine has, without torch.

Knows capacities, peak rates and the usual node of each GPU. Does not know what a run reaches
of them (planner) or what is going on on a GPU now (monitor).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from engine.config import Cluster as ClusterConfig

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of accelerator.

    `memory_bytes` is what the driver offers to a process, not the figure on the box. Peak rates
    are dense, from the makers' data sheets, in FLOP/s; None where the hardware cannot do it.
    Sustained rates are what large kernels reach of them; None: the planner's usual share of the peak.
    """

    name: str
    memory_bytes: int
    bf16_flops_per_s: float | None
    fp8_flops_per_s: float | None
    has_mxfp8: bool = False
    hbm_bytes_per_s: float | None
    nvlink_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    usual_gpus_per_node: int
    usual_network_gbit_per_s: float | None
    fp32_flops_per_s: float | None = None
    sustained_bf16_flops_per_s: float | None = None
    sustained_fp8_flops_per_s: float | None = None
    sustained_attention_flops_per_s: float | None = None
    sustained_hbm_bytes_per_s: float | None = None
    sustained_nvlink_bytes_per_s: float | None = None


def _gpu(
    name: str, gib: float, bf16_tflops: float, fp8_tflops: float | None, hbm_tb: float, nvlink_gb: float, **more: object
) -> Gpu:
    values: dict[str, object] = {"usual_gpus_per_node": 8, "usual_network_gbit_per_s": 400.0, "pcie_bytes_per_s": 64e9}
    return Gpu(
        name=name,
        memory_bytes=int(gib * GIB),
        bf16_flops_per_s=bf16_tflops * 1e12,
        fp8_flops_per_s=None if fp8_tflops is None else fp8_tflops * 1e12,
        hbm_bytes_per_s=hbm_tb * 1e12,
        nvlink_bytes_per_s=nvlink_gb * 1e9,
        **(values | more),  # type: ignore[arg-type]
    )


# NVLink (or Infinity Fabric) and PCIe rates are for one direction of one GPU.
# The same chip as the other H100s at 500 instead of 700 W: a clock goes with about the 0.7th power of the watts, so
# products sustain 0.79 of the 745 and 1,488 TFLOP/s that an H200 does.
_H100_500W = {"sustained_bf16_flops_per_s": 590e12, "sustained_fp8_flops_per_s": 1180e12}
_A100 = {"usual_network_gbit_per_s": 200.0, "pcie_bytes_per_s": 32e9}
_BLACKWELL = {"has_mxfp8": True, "pcie_bytes_per_s": 64e9}
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("h100-80", 79.1, 989.4, 1978.9, 3.35, 450),
        _gpu("h100-95", 95.0, 989.4, 1978.9, 2.4, 450, **_H100_500W),
        _gpu("h100-96", 95.0, 989.4, 1978.9, 2.4, 450, **_H100_500W),
        _gpu("h200", 139.8, 989.4, 1978.9, 4.8, 450),
        _gpu("a100-40", 39.4, 312.0, None, 1.555, 300, **_A100),
        _gpu("a100-80", 79.1, 312.0, None, 2.039, 300, **_A100),
        _gpu("b200", 178.4, 2250.0, 4500.0, 8.0, 900, **_BLACKWELL),
        _gpu("gb200", 184.0, 2500.0, 5000.0, 8.0, 900, **_BLACKWELL, usual_gpus_per_node=4),
        _gpu("mi300x", 191.9, 1307.4, 2614.9, 5.3, 448),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The resolved hardware of a plan: no `auto` left."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    network_gbit_per_s_per_gpu: float | None

    @property
    def world_size(self) -> int:
        """Processes of the whole run."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has."""

    kind: Literal["gpu", "cpu"]
    gpu_names: tuple[str, ...]
    gpu_memory_bytes: tuple[int, ...]
    cpus: int
    memory_bytes: int


def this_machine() -> Machine:
    """Looks at the machine titan runs on: visible GPUs through NVML, CPUs and memory through the system."""
    names, sizes = _visible_gpus()
    return Machine(
        kind="gpu" if names else "cpu",
        gpu_names=names,
        gpu_memory_bytes=sizes,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _visible_gpus() -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and memory of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = _visible_order(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        names = tuple(str(pynvml.nvmlDeviceGetName(handles[index])) for index in order)
        sizes = tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handles[index]).total) for index in order)
        return names, sizes
    except pynvml.NVMLError:
        return (), ()
    finally:
        pynvml.nvmlShutdown()


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


def kind_of(gpu_name: str, memory_bytes: int) -> str | None:
    """The key in `GPUS` for a device name as NVML gives it; None for a GPU that the table does not have."""
    name = gpu_name.upper().replace("-", " ")
    if "H100" in name:
        return "h100-80" if memory_bytes < 90 * GIB else "h100-96"
    if "A100" in name:
        return "a100-40" if memory_bytes < 60 * GIB else "a100-80"
    for marker, kind in (("H200", "h200"), ("GB200", "gb200"), ("B200", "b200"), ("MI300X", "mi300x")):
        if marker in name:
            return kind
    return None


def cpu_gpu(memory_bytes: int, processes: int) -> Gpu:
    """The stand-in for `cpu`: each process gets an equal share of the machine's memory."""
    return Gpu(
        name="cpu",
        memory_bytes=max(1, memory_bytes // processes),
        bf16_flops_per_s=None,
        fp8_flops_per_s=None,
        hbm_bytes_per_s=None,
        nvlink_bytes_per_s=None,
        pcie_bytes_per_s=None,
        usual_gpus_per_node=1,
        usual_network_gbit_per_s=None,
    )


def resolve_cluster(config: ClusterConfig, machine: Machine | None = None) -> Cluster:
    """`[cluster]` with every `auto` filled in; looks at this machine only where it must.

    A GPU that is here but not in the table is planned as `cpu` would be no help to anybody, so
    `auto` then raises LookupError with its name.
    """
    kind: str = config.gpu
    here = machine
    if kind in ("auto", "cpu"):
        here = here or this_machine()
    if kind == "auto":
        assert here is not None
        found = kind_of(here.gpu_names[0], here.gpu_memory_bytes[0]) if here.gpu_names else "cpu"
        if found is None:
            raise LookupError(here.gpu_names[0])
        kind = found
    count = config.gpus_per_node
    if count == "auto":
        if config.gpu == "auto" and here is not None and here.gpu_names:
            count = len(here.gpu_names)
        else:
            count = 1 if kind == "cpu" else GPUS[kind].usual_gpus_per_node
    if kind == "cpu":
        assert here is not None
        gpu = cpu_gpu(here.memory_bytes, count)
    else:
        gpu = GPUS[kind]
    return Cluster(
        gpu=gpu,
        nodes=config.nodes,
        gpus_per_node=count,
        network_gbit_per_s_per_gpu=config.network_gbit_per_s_per_gpu or gpu.usual_network_gbit_per_s,
    )
