"""What GPUs are: a table of published figures, and the hardware that a plan is made for, without torch.

Knows capacities, peak rates and the usual node of each GPU, what `[cluster]` puts in their place, and which
calibration goes over them. Does not know what a run reaches of them (planner) or what is going on on a GPU now
(monitor).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Any

from engine.calibration import find
from engine.config import Cluster as ClusterConfig
from engine.machine import Machine, this_machine

__all__ = [
    "GIB",
    "GPUS",
    "Cluster",
    "Gpu",
    "Machine",
    "calibrated",
    "cpu_gpu",
    "is_mig_instance",
    "kind_of",
    "resolve_cluster",
    "this_machine",
]

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of accelerator.

    `memory_bytes` is what the driver offers to a process, not the figure on the box. Peak rates
    are dense, from the makers' data sheets, in FLOP/s; None where the hardware cannot do it.
    Sustained rates are what large kernels reach of them, from a calibration; None: the planner's usual share of the
    peak. A link's is that of one direction.
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
    sustained_fp32_flops_per_s: float | None = None
    sustained_attention_flops_per_s: float | None = None
    sustained_hbm_bytes_per_s: float | None = None
    sustained_nvlink_bytes_per_s: float | None = None


def _gpu(
    name: str,
    gib: float,
    bf16_tflops: float,
    fp8_tflops: float | None,
    hbm_tbyte: float,
    nvlink_gbyte: float,
    *,
    fp32_tflops: float,
    **more: Any,
) -> Gpu:
    usual = {"usual_gpus_per_node": 8, "usual_network_gbit_per_s": 400.0, "pcie_bytes_per_s": 64e9}
    return Gpu(
        name=name,
        memory_bytes=int(gib * GIB),
        bf16_flops_per_s=bf16_tflops * 1e12,
        fp8_flops_per_s=None if fp8_tflops is None else fp8_tflops * 1e12,
        fp32_flops_per_s=fp32_tflops * 1e12,
        hbm_bytes_per_s=hbm_tbyte * 1e12,
        nvlink_bytes_per_s=nvlink_gbyte * 1e9,
        **(usual | more),
    )


# From the makers' data sheets, dense, and one direction of one GPU's NVLink (or Infinity Fabric) and PCIe. NVIDIA: A100
# (2021), H100 Tensor Core GPU (SXM5), H200, HGX B200 and GB200 NVL72 (figures of a node or rack over its GPUs); AMD:
# Instinct MI300X. `fp32` is without TF32. The H100 with 96 GB has the same chip beside slower memory of 2.4 TB/s, as in
# GH200's first version. Memory is what the driver counts and shows of a card (an H200's: 143,771 MiB) less the half of
# a GiB that a CUDA context takes.
_A100 = {"fp32_tflops": 19.5, "usual_network_gbit_per_s": 200.0, "pcie_bytes_per_s": 32e9}
_HOPPER = {"fp32_tflops": 67.0}
_BLACKWELL = {"has_mxfp8": True}
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("h100-80", 79.1, 989.4, 1978.9, 3.35, 450, **_HOPPER),
        _gpu("h100-95", 95.0, 989.4, 1978.9, 2.4, 450, **_HOPPER),
        _gpu("h100-96", 95.0, 989.4, 1978.9, 2.4, 450, **_HOPPER),
        _gpu("h200", 139.8, 989.4, 1978.9, 4.8, 450, **_HOPPER),
        _gpu("a100-40", 39.4, 312.0, None, 1.555, 300, **_A100),
        _gpu("a100-80", 79.1, 312.0, None, 2.039, 300, **_A100),
        _gpu("b200", 178.4, 2250.0, 4500.0, 8.0, 900, fp32_tflops=75.0, **_BLACKWELL),
        _gpu("gb200", 184.0, 2500.0, 5000.0, 8.0, 900, fp32_tflops=80.0, **_BLACKWELL, usual_gpus_per_node=4),
        _gpu("mi300x", 191.9, 1307.4, 2614.9, 5.3, 448, fp32_tflops=163.4),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The resolved hardware of a plan: no `auto` left. `calibration` is the file whose rates the GPU has."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    network_gbit_per_s_per_gpu: float | None
    calibration: str | None = None

    @property
    def world_size(self) -> int:
        """Processes of the whole run."""
        return self.nodes * self.gpus_per_node


def is_mig_instance(gpu_name: str) -> bool:
    """Whether NVML's name is that of a part of a GPU: `NVIDIA H200 MIG 1g.18gb`."""
    return " MIG " in gpu_name


def kind_of(gpu_name: str, memory_bytes: int) -> str | None:
    """The key in `GPUS` for a device name as NVML gives it; None for one that the table does not have.

    The table is of whole GPUs: of a MIG instance, which bears the GPU's name, it knows no rate.
    """
    name = gpu_name.upper().replace("-", " ")
    if is_mig_instance(gpu_name):
        return None
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


def calibrated(gpu: Gpu, setting: str, *, processes: int = 1) -> tuple[Gpu, str | None]:
    """The GPU with what was measured on its kind, and the file that says so; CalibrationError where that is damaged.

    `processes` share what was measured of a whole machine.
    """
    found = find(setting, gpu.name, host=platform.node())
    if found is None:
        return gpu, None
    rates = {name: rate / processes for name, rate in found.fields.items()}
    return replace(gpu, **rates), found.path  # type: ignore[arg-type]


def _overridden(gpu: Gpu, config: ClusterConfig) -> Gpu:
    """The GPU with the figures that the config gives; they go before what was measured of the same thing."""
    figures: list[tuple[float | None, float, dict[str, None], str]] = [
        (config.bf16_tflops, 1e12, _none("bf16_flops_per_s", "attention_flops_per_s"), "bf16_flops_per_s"),
        (config.fp8_tflops, 1e12, _none("fp8_flops_per_s"), "fp8_flops_per_s"),
        (config.fp32_tflops, 1e12, _none("fp32_flops_per_s"), "fp32_flops_per_s"),
        (config.hbm_tbyte_per_s, 1e12, _none("hbm_bytes_per_s"), "hbm_bytes_per_s"),
        (config.nvlink_gbyte_per_s, 1e9, _none("nvlink_bytes_per_s"), "nvlink_bytes_per_s"),
        (config.pcie_gbyte_per_s, 1e9, {}, "pcie_bytes_per_s"),
    ]
    changes: dict[str, Any] = {}
    for value, unit, forgotten, field in figures:
        if value is not None:
            changes |= {**forgotten, field: value * unit}
    if config.memory_gib is not None:
        changes["memory_bytes"] = int(config.memory_gib * GIB)
    return replace(gpu, **changes)


def _none(*rates: str) -> dict[str, None]:
    return {f"sustained_{rate}": None for rate in rates}


def resolve_cluster(config: ClusterConfig, machine: Machine | None = None) -> Cluster:
    """`[cluster]` with every `auto` filled in; looks at this machine only where it must.

    A GPU that is here but not in the table is planned as `cpu` would be no help to anybody, so
    `auto` then raises LookupError with its name. CalibrationError where a calibration is to be used and cannot be.
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
        gpu, calibration = calibrated(cpu_gpu(here.memory_bytes, count), config.calibration, processes=count)
    else:
        gpu, calibration = calibrated(GPUS[kind], config.calibration)
    return Cluster(
        gpu=_overridden(gpu, config),
        nodes=config.nodes,
        gpus_per_node=count,
        network_gbit_per_s_per_gpu=config.network_gbit_per_s_per_gpu or gpu.usual_network_gbit_per_s,
        calibration=calibration,
    )
