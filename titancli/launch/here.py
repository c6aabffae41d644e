"""The hardware of this machine, compared with the one a config is made for.

Knows what is here and what is asked for. Does not know memory of the plan (rules M) or how to
start anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from engine.errors import Finding, Severity
from engine.hardware import GIB, GPUS, Cluster, Gpu, Machine, calibrated, is_mig_instance, kind_of, resolve_cluster
from engine.sources import Loaded, locate
from engine.visible import VARIABLE
from titancli import figures

_ON_EACH = "on each node with --node-rank K --rdzv-endpoint HOST:PORT"
_ELSEWHERE = f"{_ON_EACH}, or by --scheduler slurm or kubernetes"
_TRY_HERE = "to try titan on this machine: titan launch --preset quickstart"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is to be said, and the hardware to plan for where it is not the config's own."""

    findings: tuple[Finding, ...] = ()
    cluster: Cluster | None = None


def compare(loaded: Loaded, machine: Machine, *, meets: bool = False) -> Comparison:
    """Whether this machine can run a config that starts its processes here, with `meets` on this one of several.

    A GPU at least as large and as capable as the config's passes with a warning, and comes back
    as the cluster to plan for.
    """
    needed = resolve_cluster(loaded.config.cluster, machine)
    if needed.gpu.name == "cpu":
        return Comparison(_cpu_findings(loaded, needed, machine, meets=meets))
    needs = f"this run needs {_gpus(needed)}, and this machine has {_what_is_here(machine)}"
    where = "launch it where those GPUs are"
    if machine.kind == "cpu":
        where += f", {_ELSEWHERE}" if needed.nodes > 1 and not meets else ""
        return Comparison((_finding(loaded, "H801", "cluster.gpu", needs, f"{where}; {_TRY_HERE}"),))
    if needed.nodes > 1 and not meets:
        layout = f"launch it {_ELSEWHERE}, or set cluster.nodes = 1 and a layout for {len(machine.gpu_names)} GPUs"
        return Comparison((_finding(loaded, "H802", "cluster.nodes", needs, f"{layout}; {_TRY_HERE}"),))
    if needed.gpus_per_node > len(machine.gpu_names):
        layout = f"or set cluster.gpus_per_node = {len(machine.gpu_names)} and a smaller layout"
        finding = _finding(loaded, "H803", "cluster.gpus_per_node", needs, f"{where}, {layout}; {_TRY_HERE}")
        return Comparison((finding,))
    return _compare_cards(loaded, needed, machine)


def _compare_cards(loaded: Loaded, needed: Cluster, machine: Machine) -> Comparison:
    """The GPUs that the ranks would use, against the config's."""
    cards = list(zip(machine.gpu_names, machine.gpu_memory_bytes, strict=True))[: needed.gpus_per_node]
    known: list[Gpu] = []
    for name, memory_bytes in cards:
        kind = kind_of(name, memory_bytes)
        if is_mig_instance(name):
            return Comparison((_instance(loaded, needed.gpu, name, memory_bytes),))
        if kind is None:
            message = (
                f"this run is made for {needed.gpu.name}, and this machine's {name} is not in titan's table of GPUs"
            )
            fix = f"launch it on {needed.gpu.name}, or set cluster.gpu to the nearest of {', '.join(GPUS)}"
            return Comparison((_finding(loaded, "H804", "cluster.gpu", message, fix),))
        if _same(kind, needed.gpu.name):
            known.append(GPUS[kind])
            continue
        lacks = _lacks(GPUS[kind], needed.gpu)
        if lacks:
            message = f"this run is made for {needed.gpu.name}, and this machine's {kind} has {' and '.join(lacks)}"
            fix = f'launch it on {needed.gpu.name}, or set cluster.gpu = "{kind}" and a layout that fits it'
            return Comparison((_finding(loaded, "H805", "cluster.gpu", message, fix),))
        known.append(GPUS[kind])
    weakest = min(known, key=lambda gpu: gpu.memory_bytes)
    if all(_same(gpu.name, needed.gpu.name) for gpu in known):
        return Comparison(_promised_memory(loaded, needed.gpu, weakest))
    message = f"this run is made for {needed.gpu.name}, and runs on {weakest.name} here: planned anew for it"
    fix = f'set cluster.gpu = "{weakest.name}" where it is always run here'
    warning = _finding(loaded, "H806", "cluster.gpu", message, fix, severity="warning")
    gpu, calibration = calibrated(weakest, "none" if loaded.config.cluster.calibration == "none" else "auto")
    return Comparison((warning,), replace(needed, gpu=gpu, calibration=calibration))


def _instance(loaded: Loaded, needed: Gpu, name: str, memory_bytes: int) -> Finding:
    """What is said of a part of a GPU: it may have the memory that is planned, and never the speed."""
    usable = memory_bytes - GIB // 2
    part = f"this machine's {name} is a part of a GPU with {figures.memory(memory_bytes)}"
    if needed.memory_bytes > usable:
        message = f"{part}, and this run is planned for {figures.memory(needed.memory_bytes)}"
        fix = f"set cluster.memory_gib = {usable / GIB:.1f}; the planned speed is that of a whole {needed.name}"
        return _finding(loaded, "H819", "cluster.gpu", message, fix)
    message = f"{part}: its memory is planned with, and the speed is that of a whole {needed.name}"
    fix = "give cluster.bf16_tflops and cluster.hbm_tbyte_per_s their share, or do not go by the speed"
    return _finding(loaded, "H819", "cluster.gpu", message, fix, severity="warning")


def _promised_memory(loaded: Loaded, needed: Gpu, here: Gpu) -> tuple[Finding, ...]:
    """An error where the config gives its own kind of GPU more memory than that has."""
    if needed.memory_bytes <= here.memory_bytes:
        return ()
    promised, found = (figures.memory(gpu.memory_bytes) for gpu in (needed, here))
    message = f"this run is planned for {promised} of memory, and {here.name} has {found}"
    fix = f"leave memory_gib out, or set it to {here.memory_bytes / GIB:.1f}"
    return (_finding(loaded, "H808", "cluster.memory_gib", message, fix),)


def _lacks(here: Gpu, needed: Gpu) -> list[str]:
    """What a GPU is short of, in words."""
    lacks: list[str] = []
    if here.memory_bytes < needed.memory_bytes:
        lacks.append(f"{figures.memory(here.memory_bytes)} of memory instead of {figures.memory(needed.memory_bytes)}")
    if needed.fp8_flops_per_s is not None and here.fp8_flops_per_s is None:
        lacks.append("no float8")
    if needed.has_mxfp8 and not here.has_mxfp8:
        lacks.append("no MXFP8")
    if (here.bf16_flops_per_s or 0.0) < (needed.bf16_flops_per_s or 0.0):
        lacks.append("a lower bfloat16 rate")
    return lacks


def _same(here: str, needed: str) -> bool:
    """Whether two entries of the table are one and the same hardware under two names."""
    return replace(GPUS[here], name=needed) == GPUS[needed]


def _cpu_findings(loaded: Loaded, needed: Cluster, machine: Machine, *, meets: bool) -> tuple[Finding, ...]:
    if needed.nodes > 1 and not meets:
        message = f'this run needs {needed.nodes} machines, and launch.scheduler = "local" starts processes on one'
        return (
            _finding(loaded, "H802", "cluster.nodes", message, f"launch it {_ELSEWHERE}, or set cluster.nodes = 1"),
        )
    if needed.gpus_per_node > machine.cpus:
        message = f"{needed.gpus_per_node} processes share {machine.cpus} CPUs: steps will be slow"
        fix = f"set cluster.gpus_per_node = {machine.cpus} with a layout for as many"
        return (_finding(loaded, "H807", "cluster.gpus_per_node", message, fix, severity="warning"),)
    return ()


def _gpus(cluster: Cluster) -> str:
    nodes = f" ({cluster.nodes} nodes of {cluster.gpus_per_node})" if cluster.nodes > 1 else ""
    return f"{cluster.world_size} x {cluster.gpu.name}{nodes}"


def _what_is_here(machine: Machine) -> str:
    setting = os.environ.get(VARIABLE)
    left = "" if setting is None else f" that {VARIABLE} = {setting!r} leaves"
    if machine.kind == "cpu":
        return f"no GPU{left} ({machine.cpus} CPUs, {figures.memory(machine.memory_bytes)} of memory)"
    kinds = [kind_of(*card) or card[0] for card in zip(machine.gpu_names, machine.gpu_memory_bytes, strict=True)]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) + left


def _finding(loaded: Loaded, rule: str, key: str, message: str, fix: str, *, severity: Severity = "error") -> Finding:
    file, line, source = locate(loaded.origins, key)
    return Finding(rule=rule, severity=severity, key=key, message=message, fix=fix, file=file, line=line, source=source)
