"""Hardware: the table of GPUs, figures and calibrations that go over it, and clusters without `auto`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.calibration import Calibration, usual_path, write
from engine.config import Cluster as ClusterConfig
from engine.config import GpuName
from engine.hardware import GIB, GPUS, Gpu, Machine, cpu_gpu, kind_of, resolve_cluster

CPU = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=16 * GIB)
TWO_H200 = Machine(
    kind="gpu", gpu_names=("NVIDIA H200",) * 2, gpu_memory_bytes=(143_771 << 20,) * 2, cpus=32, memory_bytes=256 * GIB
)


def test_the_table_has_every_gpu_that_a_config_can_name() -> None:
    assert GPUS.keys() == set(GpuName.__args__) - {"cpu", "auto"}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_gpu_offers_a_little_less_than_its_name_says(gpu: object) -> None:
    sizes = {"h100-80": 80, "h100-95": 96, "h100-96": 96, "h200": 141, "a100-40": 40, "a100-80": 80, "b200": 192,
             "gb200": 192, "mi300x": 192}  # fmt: skip
    assert sizes.keys() == GPUS.keys()
    assert 0.92 * sizes[gpu.name] <= gpu.memory_bytes / GIB < sizes[gpu.name]


def test_only_hopper_and_later_multiply_float8_and_only_blackwell_mxfp8() -> None:
    assert {name for name, gpu in GPUS.items() if gpu.fp8_flops_per_s is None} == {"a100-40", "a100-80"}
    assert {name for name, gpu in GPUS.items() if gpu.has_mxfp8} == {"b200", "gb200"}


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "h100-80"),
        ("NVIDIA H100 PCIe", 80, "h100-80"),
        ("NVIDIA H100 NVL", 94, "h100-96"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80"),
        ("NVIDIA H200", 140, "h200"),
        ("NVIDIA B200", 180, "b200"),
        ("NVIDIA GB200", 184, "gb200"),
        ("AMD Instinct MI300X", 192, "mi300x"),
        ("NVIDIA L40S", 48, None),
        ("NVIDIA GeForce RTX 4090", 24, None),
    ],
)
def test_a_device_is_known_by_its_name_and_memory(name: str, gib: int, kind: str | None) -> None:
    assert kind_of(name, gib * GIB) == kind


def test_a_mig_instance_is_not_the_gpu_whose_name_it_bears() -> None:
    assert kind_of("NVIDIA H200 MIG 1g.18gb", 18 * GIB) is None


def test_auto_is_what_this_machine_has() -> None:
    cluster = resolve_cluster(ClusterConfig(), TWO_H200)
    assert (cluster.gpu.name, cluster.nodes, cluster.gpus_per_node, cluster.world_size) == ("h200", 1, 2, 2)


def test_auto_without_gpus_is_one_process_of_the_cpu() -> None:
    cluster = resolve_cluster(ClusterConfig(), CPU)
    assert (cluster.gpu.name, cluster.world_size, cluster.gpu.memory_bytes) == ("cpu", 1, 16 * GIB)


def test_a_named_gpu_has_its_usual_node_wherever_titan_runs() -> None:
    assert resolve_cluster(ClusterConfig(gpu="gb200", nodes=3), CPU).world_size == 12
    assert resolve_cluster(ClusterConfig(gpu="h100-80"), TWO_H200).world_size == 8


def test_a_named_gpu_does_not_look_at_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> Machine:
        raise AssertionError("looked at this machine")

    monkeypatch.setattr("engine.hardware.this_machine", looked)
    assert resolve_cluster(ClusterConfig(gpu="h100-80", gpus_per_node=4)).world_size == 4


def test_a_gpu_that_the_table_does_not_have_is_named() -> None:
    unknown = Machine(kind="gpu", gpu_names=("NVIDIA L40S",), gpu_memory_bytes=(48 * GIB,), cpus=2, memory_bytes=GIB)
    with pytest.raises(LookupError, match="NVIDIA L40S"):
        resolve_cluster(ClusterConfig(), unknown)


def test_cpu_processes_share_the_memory() -> None:
    assert resolve_cluster(ClusterConfig(gpu="cpu", gpus_per_node=4), CPU).gpu == cpu_gpu(16 * GIB, 4)
    assert cpu_gpu(16 * GIB, 4).memory_bytes == 4 * GIB


def test_a_given_network_goes_before_the_usual_one() -> None:
    given = ClusterConfig(gpu="h100-80", network_gbit_per_s_per_gpu=50.0)
    assert resolve_cluster(given, CPU).network_gbit_per_s_per_gpu == 50.0
    assert resolve_cluster(ClusterConfig(gpu="a100-80"), CPU).network_gbit_per_s_per_gpu == 200.0
    assert resolve_cluster(ClusterConfig(gpu="cpu"), CPU).network_gbit_per_s_per_gpu is None


def test_a_given_figure_goes_before_the_tables() -> None:
    given = ClusterConfig(
        gpu="h200",
        memory_gib=100.0,
        bf16_tflops=900.0,
        fp8_tflops=1800.0,
        fp32_tflops=60.0,
        hbm_tbyte_per_s=4.0,
        nvlink_gbyte_per_s=400.0,
        pcie_gbyte_per_s=50.0,
    )
    gpu = resolve_cluster(given, CPU).gpu
    assert gpu.memory_bytes == 100 * GIB
    assert (gpu.bf16_flops_per_s, gpu.fp8_flops_per_s, gpu.fp32_flops_per_s) == (9e14, 1.8e15, 6e13)
    assert (gpu.hbm_bytes_per_s, gpu.nvlink_bytes_per_s, gpu.pcie_bytes_per_s) == (4e12, 4e11, 5e10)


def test_what_is_not_given_stays_the_tables() -> None:
    assert resolve_cluster(ClusterConfig(gpu="h200", memory_gib=100.0), CPU).gpu == replace(
        GPUS["h200"], memory_bytes=100 * GIB
    )


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_gpu_multiplies_float32_slower_than_bfloat16(gpu: Gpu) -> None:
    assert gpu.fp32_flops_per_s is not None
    assert gpu.bf16_flops_per_s is not None
    assert 1e13 < gpu.fp32_flops_per_s < gpu.bf16_flops_per_s


def measured(gpu: str, host: str = "here") -> None:
    """A calibration at its usual place: half of an H200."""
    rates = {"bf16_tflops": 400.0, "hbm_tbyte_per_s": 2.0, "nvlink_gbyte_per_s": 200.0, "attention_tflops": 250.0}
    about = {"gpu": gpu, "gpu_name": gpu, "host": host, "date": "2026-11-30", "versions": {}}
    write(Calibration(**about, sustained=rates), usual_path(gpu))


def test_a_calibration_of_the_gpu_is_used_and_named() -> None:
    measured("h200")
    cluster = resolve_cluster(ClusterConfig(gpu="h200"), CPU)
    assert cluster.gpu.sustained_bf16_flops_per_s == 4e14
    assert cluster.gpu.sustained_hbm_bytes_per_s == 2e12
    assert cluster.gpu.sustained_nvlink_bytes_per_s == 2e11
    assert cluster.gpu.bf16_flops_per_s == GPUS["h200"].bf16_flops_per_s
    assert cluster.calibration == str(usual_path("h200"))


def test_a_calibration_is_not_used_for_another_gpu_nor_where_none_is_wanted() -> None:
    measured("h200")
    for config in (ClusterConfig(gpu="h100-80"), ClusterConfig(gpu="h200", calibration="none")):
        cluster = resolve_cluster(config, CPU)
        assert (cluster.calibration, cluster.gpu) == (None, GPUS[config.gpu])


def test_a_given_figure_goes_before_what_was_measured_of_the_same() -> None:
    measured("h200")
    gpu = resolve_cluster(ClusterConfig(gpu="h200", bf16_tflops=900.0), CPU).gpu
    assert gpu.sustained_bf16_flops_per_s is None
    assert gpu.sustained_attention_flops_per_s is None
    assert gpu.sustained_hbm_bytes_per_s == 2e12


def test_processes_of_a_cpu_share_what_was_measured_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "here")
    measured("cpu")
    one, four = (resolve_cluster(ClusterConfig(gpu="cpu", gpus_per_node=count), CPU).gpu for count in (1, 4))
    assert one.sustained_bf16_flops_per_s == 4e14
    assert four.sustained_bf16_flops_per_s == 1e14


def test_a_cpu_is_not_planned_with_the_rates_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    measured("cpu")
    assert resolve_cluster(ClusterConfig(gpu="cpu"), CPU).calibration is None
