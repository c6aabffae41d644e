"""This machine against the config's hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.calibration import Calibration, usual_path, write
from engine.hardware import GIB, GPUS, Machine
from engine.sources import Flag, Loaded, load
from titancli.launch.here import compare

CPU = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=16 * GIB)
H200_BYTES = int(140.4 * GIB)


def machine(*cards: tuple[str, float]) -> Machine:
    names, sizes = zip(*cards, strict=True)
    return replace(CPU, kind="gpu", gpu_names=names, gpu_memory_bytes=tuple(int(gib * GIB) for gib in sizes))


def config(**flags: str) -> Loaded:
    keys = {f"cluster.{name}": value for name, value in flags.items()}
    return load(environ={}, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()])


def measured(gpu: str, bf16_tflops: float) -> None:
    """A calibration at its usual place."""
    about = {"gpu": gpu, "gpu_name": gpu, "host": "here", "date": "2026-11-30", "versions": {}}
    write(Calibration(**about, sustained={"bf16_tflops": bf16_tflops}), usual_path(gpu))


H200S = machine(*[("NVIDIA H200", 140.4)] * 8)
H100S = machine(*[("NVIDIA H100 80GB HBM3", 79.6)] * 8)


def test_same_card_says_nothing() -> None:
    compared = compare(config(gpu="h200", gpus_per_node="8"), H200S)
    assert (compared.findings, compared.cluster) == ((), None)


def test_given_figures_of_the_same_card_are_kept() -> None:
    compared = compare(config(gpu="h200", gpus_per_node="8", bf16_tflops="1500.0", memory_gib="100.0"), H200S)
    assert (compared.findings, compared.cluster) == ((), None)


def test_more_memory_than_the_card_has_is_refused() -> None:
    (wrong,) = compare(config(gpu="h200", gpus_per_node="8", memory_gib="141.0"), H200S).findings
    assert (wrong.rule, wrong.severity, wrong.key) == ("H808", "error", "cluster.memory_gib")
    assert wrong.message == "this run is planned for 141 GiB of memory, and h200 has 140 GiB"
    assert compare(config(gpu="h200", gpus_per_node="8", memory_gib="139.8"), H200S).findings == ()
    assert wrong.fix == "leave memory_gib out, or set it to 139.8"


def test_a_card_that_was_measured_is_the_same_card() -> None:
    measured("h200", 600.0)
    compared = compare(config(gpu="h200", gpus_per_node="8"), H200S)
    assert (compared.findings, compared.cluster) == ((), None)


def test_a_larger_card_is_planned_for_with_what_was_measured_on_it() -> None:
    measured("h200", 600.0)
    cluster = compare(config(gpu="h100-80", gpus_per_node="8"), H200S).cluster
    assert cluster is not None
    assert (cluster.gpu.sustained_bf16_flops_per_s, cluster.calibration) == (6e14, str(usual_path("h200")))


def test_larger_card_passes_with_a_warning_and_is_planned_for() -> None:
    compared = compare(config(gpu="h100-80", gpus_per_node="8"), H200S)
    assert [(finding.rule, finding.severity) for finding in compared.findings] == [("H806", "warning")]
    assert compared.cluster is not None
    assert (compared.cluster.gpu, compared.cluster.world_size) == (GPUS["h200"], 8)


def test_smaller_card_is_refused_with_both_sizes() -> None:
    (wrong,) = compare(config(gpu="h200", gpus_per_node="8"), H100S).findings
    assert (wrong.rule, wrong.severity, wrong.key) == ("H805", "error", "cluster.gpu")
    assert wrong.message == (
        "this run is made for h200, and this machine's h100-80 has 79.1 GiB of memory instead of 140 GiB"
    )


def test_card_that_lacks_float8_is_refused_whatever_its_size() -> None:
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="1"), machine(("NVIDIA A100-SXM4-80GB", 80.0))).findings
    assert "no float8" in wrong.message


def test_one_weak_card_among_strong_ones_is_found() -> None:
    mixed = machine(("NVIDIA H200", 140.4), ("NVIDIA H100 80GB HBM3", 79.6))
    assert [f.rule for f in compare(config(gpu="h200", gpus_per_node="2"), mixed).findings] == ["H805"]
    assert compare(config(gpu="h200", gpus_per_node="1"), mixed).findings == ()


def test_two_names_of_one_card_are_the_same() -> None:
    ninety_six = machine(*[("NVIDIA H100", 95.6)] * 8)
    assert compare(config(gpu="h100-95", gpus_per_node="8"), ninety_six).findings == ()


def test_card_that_the_table_lacks_is_named() -> None:
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="1"), machine(("NVIDIA L40S", 45.0))).findings
    assert (wrong.rule, "NVIDIA L40S" in wrong.message) == ("H804", True)


def test_fewer_gpus_than_asked_for() -> None:
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="8"), machine(("NVIDIA H100 80GB HBM3", 79.6))).findings
    assert wrong.rule == "H803"
    assert wrong.message == "this run needs 8 x h100-80, and this machine has 1 x h100-80"
    assert "set cluster.gpus_per_node = 1" in wrong.fix


def test_several_nodes_are_more_than_one_machine() -> None:
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="8", nodes="4"), H100S).findings
    assert wrong.rule == "H802"
    assert "32 x h100-80 (4 nodes of 8)" in wrong.message
    fix = (
        "launch it on each node with --node-rank K --rdzv-endpoint HOST:PORT, or by --scheduler slurm or kubernetes, "
        "or set cluster.nodes = 1 and a layout for 8 GPUs"
    )
    assert wrong.fix.startswith(fix)
    (wrong,) = compare(config(gpu="cpu", nodes="2"), CPU).findings
    assert (wrong.rule, wrong.is_hardware, wrong.severity) == ("H802", True, "error")


def test_one_of_several_nodes_needs_only_its_own_gpus() -> None:
    assert compare(config(gpu="h100-80", gpus_per_node="8", nodes="4"), H100S, meets=True).findings == ()
    assert compare(config(gpu="cpu", nodes="2", gpus_per_node="2"), CPU, meets=True).findings == ()
    (wrong,) = compare(config(gpu="h200", gpus_per_node="9", nodes="2"), H200S, meets=True).findings
    assert (wrong.rule, wrong.message) == (
        "H803",
        "this run needs 18 x h200 (2 nodes of 9), and this machine has 8 x h200",
    )


def test_no_gpu_says_what_is_here_and_what_to_do() -> None:
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="8"), CPU).findings
    assert wrong.message == ("this run needs 8 x h100-80, and this machine has no GPU (2 CPUs, 16.0 GiB of memory)")
    assert "titan launch --preset quickstart" in wrong.fix
    assert "--scheduler" not in wrong.fix
    (wrong,) = compare(config(gpu="h100-80", gpus_per_node="8", nodes="2"), CPU).findings
    assert (wrong.rule, "by --scheduler slurm or kubernetes" in wrong.fix) == ("H801", True)


@pytest.mark.parametrize(("processes", "rules"), [("2", []), ("3", ["H807"])])
def test_more_processes_than_cpus_are_only_slow(processes: str, rules: list[str]) -> None:
    findings = compare(config(gpu="cpu", gpus_per_node=processes), CPU).findings
    assert [finding.rule for finding in findings] == rules
    assert all(finding.severity == "warning" for finding in findings)


def test_cpu_run_needs_no_gpu_even_where_there_are_some() -> None:
    assert compare(config(gpu="cpu", gpus_per_node="2"), H100S).findings == ()


MIG = machine(("NVIDIA H200 MIG 1g.18gb", 18.0))


def test_a_mig_instance_is_not_a_whole_gpu() -> None:
    (wrong,) = compare(config(gpu="h200", gpus_per_node="1"), MIG).findings
    assert (wrong.rule, wrong.severity) == ("H819", "error")
    assert wrong.message == (
        "this machine's NVIDIA H200 MIG 1g.18gb is a part of a GPU with 18.0 GiB, and this run is planned for 140 GiB"
    )
    assert wrong.fix == "set cluster.memory_gib = 17.5; the planned speed is that of a whole h200"


def test_a_mig_instance_may_be_planned_with_its_own_memory() -> None:
    (doubt,) = compare(config(gpu="h200", gpus_per_node="1", memory_gib="17.5"), MIG).findings
    assert (doubt.rule, doubt.severity) == ("H819", "warning")
    assert "the speed is that of a whole h200" in doubt.message


@pytest.mark.parametrize("visible", ["4,6", ""])
def test_what_cuda_visible_devices_hides_is_said_with_what_is_here(
    visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    here = machine(*[("NVIDIA H200", 140.4)] * 2) if visible else CPU
    (wrong,) = compare(config(gpu="h200", gpus_per_node="8"), here).findings
    left = "2 x h200 that CUDA_VISIBLE_DEVICES = '4,6' leaves" if visible else "no GPU that CUDA_VISIBLE_DEVICES = ''"
    assert f"and this machine has {left}" in wrong.message


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
