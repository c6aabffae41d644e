"""What the keys of [cluster] mean: the rates and links that a plan is made with, and how much hangs on each.

Knows where a figure comes from: the config, a calibration, a data sheet. Does not measure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from engine.calibration import KEY as CALIBRATION
from engine.calibration import usual_path
from engine.explain.answer import Cost, Derived, Figure
from engine.explain.degrees import exposed_ms, group
from engine.explain.known import Edit, Known, step_ms, used_bytes
from engine.explain.row import Row, against, free
from engine.explain.words import difference, duration, many, size
from engine.hardware import GIB, GPUS, Cluster
from engine.planner.comms import Axis
from engine.rules.degrees import SHARD
from engine.rules.ways import NODES

_MORE = 1.1
# Groups of ranks, and the axis of the plan's times that they send for.
_GROUPS: tuple[tuple[Axis, str], ...] = (
    ("tp", "tp"),
    ("cp", "cp"),
    ("fsdp", "dp_shard"),
    ("dp_replicate", "dp_replicate"),
    ("pp", "pp"),
)


# ── which hardware ──


def _gpu(known: Known) -> Derived | None:
    if known.config.cluster.gpu != "auto":
        return None
    found = "no GPU is here: processes on its CPUs" if known.plan.gpu == "cpu" else "what this machine has"
    return Derived(known.plan.gpu, found)


def _per_node(known: Known) -> Derived | None:
    asked, count = known.config.cluster, known.cluster.gpus_per_node
    if asked.gpus_per_node != "auto":
        return None
    if known.plan.gpu == "cpu":
        return Derived(count, "one process")
    return Derived(count, "the GPUs that are here" if asked.gpu == "auto" else f"a usual node of {known.plan.gpu}")


def _world(known: Known) -> Iterable[Figure]:
    cluster = known.cluster
    formula = f"{many(cluster.nodes, 'node')} x {cluster.gpus_per_node} = {cluster.world_size}"
    yield Figure("world size", cluster.world_size, formula)


def _step(known: Known) -> Cost:
    return Cost(used_bytes(known.plan), step_ms(known.plan), "the whole step, and the fullest rank at its fullest")


def _sent(known: Known, *, between: bool) -> Cost:
    """What the axes hold a step up that leave a node, or that stay in one."""
    axes = [name for axis, name in _GROUPS if group(known, axis).size > 1 and group(known, axis).spans_nodes == between]
    place = "between nodes" if between else "inside of a node"
    if not axes:
        return free(f"no axis sends {place}")
    ms = exposed_ms(known, *axes)
    told = "takes a time that is not known here" if ms is None else f"holds a step up for {duration(ms)}"
    return Cost(0, ms, f"{', '.join(axes)} sending {place} {told}")


def _twice(known: Known) -> Iterable[Edit]:
    rest = known.config.parallelism.data_parallel_shard_degree == -1
    return [{NODES: 2 * known.cluster.nodes} | ({} if rest else {SHARD: 2 * known.mesh.dp_shard})]


# ── how fast it is ──


def _memory(known: Known) -> Derived | None:
    if known.config.cluster.memory_gib is not None:
        return None
    gpu = known.cluster.gpu
    value = round(gpu.memory_bytes / GIB, 2)
    if gpu.name == "cpu":
        return Derived(value, f"this machine's memory over {many(known.cluster.gpus_per_node, 'process', 'processes')}")
    return Derived(value, f"what the driver offers of a card of {gpu.name}")


def _room(known: Known) -> Cost:
    memory = known.plan.memory
    text = f"{size(used_bytes(known.plan))} of {size(memory.capacity_bytes)} are used at the fullest moment"
    return free(text if memory.moment is None else f"{text}, {memory.moment}")


def _network(known: Known) -> Derived | None:
    rate = known.cluster.network_gbit_per_s_per_gpu
    if known.config.cluster.network_gbit_per_s_per_gpu is not None or rate is None:
        return None
    return Derived(rate, f"a usual node of {known.plan.gpu}: {rate:g} Gbit/s for each GPU")


def _network_cost(known: Known) -> Cost:
    rate = known.cluster.network_gbit_per_s_per_gpu
    cost = _sent(known, between=True)
    if rate is None:
        return cost
    return Cost(
        0,
        cost.ms,
        f"{cost.text}; {_sensitivity(known, replace(known.cluster, network_gbit_per_s_per_gpu=_MORE * rate))}",
    )


def _sensitivity(known: Known, cluster: Cluster) -> str:
    """What a tenth more of one rate would change."""
    faster = known.again({}, cluster=cluster)
    assert not isinstance(faster, str), "a rate of hardware breaks no rule"
    here, there = step_ms(known.plan), step_ms(faster)
    return "10 % more: " + difference(None, None if here is None or there is None else there - here)


def _rate(name: str, field: str, unit: float) -> Row:
    """A rate of the GPU: where it comes from, and what a tenth more of it would do."""
    key, measured = f"cluster.{name}", f"sustained_{field}"

    def derived(known: Known) -> Derived | None:
        gpu = known.cluster.gpu
        peak, sustained = getattr(gpu, field), getattr(gpu, measured, None)
        if getattr(known.config.cluster, name) is not None or (peak is None and sustained is None):
            return None
        sheet = None if peak is None else float(f"{peak / unit:.5g}")
        if sustained is not None:
            beside = "" if sheet is None else f"; the data sheet has {sheet:g}"
            return Derived(float(f"{sustained / unit:.5g}"), f"measured: {known.cluster.calibration}{beside}")
        return Derived(sheet, f"the data sheet of {gpu.name}; of it the planner takes what large kernels usually reach")

    def cost(known: Known) -> Cost:
        gpu = known.cluster.gpu
        given = getattr(known.config.cluster, name) is not None
        rates = {rate: getattr(gpu, rate, None) for rate in (field, measured)}
        more = {rate: _MORE * value for rate, value in rates.items() if value is not None}
        if not more:
            return free("not known, and so left out of the plan")
        tenth = _sensitivity(known, replace(known.cluster, gpu=replace(gpu, **more)))
        if not given or gpu.name not in GPUS:
            return free(f"nothing against what {gpu.name} has; {tenth}")
        beside = against(known, {key: None}, "left out")
        return Cost(beside.bytes, beside.ms, f"{beside.text}; {tenth}")

    return Row(derived=derived, cost=cost)


# ── what was measured ──


def _calibration(known: Known) -> Derived | None:
    if known.config.cluster.calibration != "auto":
        return None
    path = known.cluster.calibration
    if path is not None:
        return Derived(path, "measured rates that are here")
    return Derived("none", f"no measured rates for {known.plan.gpu} in {usual_path(known.plan.gpu)}")


def _calibration_cost(known: Known) -> Cost:
    if known.cluster.calibration is None:
        return free("no measured rates: the planner's usual shares of the peaks")
    return against(known, {CALIBRATION: "none"}, "without them")


CLUSTER_ROWS: dict[str, Row] = {
    "cluster.gpu": Row(derived=_gpu, cost=_step),
    NODES: Row(figures=_world, cost=partial(_sent, between=True), edits=_twice),
    "cluster.gpus_per_node": Row(derived=_per_node, cost=partial(_sent, between=False)),
    "cluster.network_gbit_per_s_per_gpu": Row(derived=_network, cost=_network_cost),
    "cluster.memory_gib": Row(derived=_memory, cost=_room),
    "cluster.bf16_tflops": _rate("bf16_tflops", "bf16_flops_per_s", 1e12),
    "cluster.fp8_tflops": _rate("fp8_tflops", "fp8_flops_per_s", 1e12),
    "cluster.fp32_tflops": _rate("fp32_tflops", "fp32_flops_per_s", 1e12),
    "cluster.hbm_tbyte_per_s": _rate("hbm_tbyte_per_s", "hbm_bytes_per_s", 1e12),
    "cluster.nvlink_gbyte_per_s": _rate("nvlink_gbyte_per_s", "nvlink_bytes_per_s", 1e9),
    "cluster.pcie_gbyte_per_s": _rate("pcie_gbyte_per_s", "pcie_bytes_per_s", 1e9),
    CALIBRATION: Row(derived=_calibration, cost=_calibration_cost),
}
