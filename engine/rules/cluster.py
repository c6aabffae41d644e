"""Rules C8xx: figures of `[cluster]` that no such GPU has, and calibrations that cannot be used."""

from __future__ import annotations

from typing import Any

from engine.calibration import KEY
from engine.facts import Facts
from engine.hardware import GIB, GPUS
from engine.rules.row import Rule

# Data sheets print rates with sparsity, and links in both directions: twice what a plan means.
_DOUBLED = 1.9
# No card of a kind is that much slower: a figure in another unit is 1,000 times off.
_FAR_BELOW = 0.05
# The network of a node of eight GPUs, given as that of each; some nodes have twice the usual one.
_OF_A_NODE = 3.9
# A card's memory as the driver shows it is up to this much above what a process gets.
_MEMORY_TOLERANCE = 1.03


def _published(f: Facts, field: str, unit: float) -> float | None:
    """The table's figure of the cluster's GPU in the unit of the config; None for `cpu`, or where it has none."""
    gpu = GPUS.get(f.known_cluster.gpu.name)
    value = None if gpu is None else getattr(gpu, field)
    return None if value is None else float(f"{value / unit:.5g}")


def _rate_rule(rule_id: str, name: str, field: str, unit: float, *, why: str) -> Rule:
    key = f"cluster.{name}"

    def words(f: Facts) -> dict[str, object]:
        given, usual = getattr(f.config.cluster, name), _published(f, field, unit)
        assert usual is not None, "a rate is held against a data sheet that has one"
        return {"given": f"{given:g}", "usual": f"{usual:g}", "times": _times(given, usual)}

    def is_far_off(f: Facts) -> bool:
        given, usual = getattr(f.config.cluster, name), _published(f, field, unit)
        if given is None or usual is None:
            return False
        return bool(given >= _DOUBLED * usual or given <= _FAR_BELOW * usual)

    def edit(f: Facts) -> dict[str, Any]:
        return {key: _published(f, field, unit)}

    return Rule(
        id=rule_id,
        key=key,
        needs="cluster",
        severity="warning",
        broken=is_far_off,
        message=f"{name} = {{given}} is {{times}} the {{usual}} of {{cluster.gpu.name}}",
        fix="set it to {usual}, or leave it out",
        words=words,
        edit=edit,
        why=why,
    )


def _times(given: float, usual: float) -> str:
    return f"{given / usual:,.1f} times" if given >= usual else f"{100 * given / usual:.2g} % of"


_SPARSE = "data sheets print rates of sparse matrices, twice those of the full ones that training multiplies"
_BOTH_WAYS = "data sheets add both directions of a link; a plan counts what one GPU sends at once"

CLUSTER_RULES: tuple[Rule, ...] = (
    Rule(
        id="C801",
        key=KEY,
        broken=lambda f: f.calibration_trouble is not None,
        message="{calibration_trouble}",
        fix='measure anew with titan doctor --measure, or set calibration to "none"',
        edit=lambda _: {KEY: "none"},
        why="a plan that was to use measured rates and silently did not would promise another speed",
    ),
    _rate_rule("C802", "bf16_tflops", "bf16_flops_per_s", 1e12, why=_SPARSE),
    _rate_rule("C803", "fp8_tflops", "fp8_flops_per_s", 1e12, why=_SPARSE),
    _rate_rule("C804", "fp32_tflops", "fp32_flops_per_s", 1e12, why="rates with TF32 are not those of float32"),
    _rate_rule("C805", "hbm_tbyte_per_s", "hbm_bytes_per_s", 1e12, why="figures may be in GB/s or of several GPUs"),
    _rate_rule("C806", "nvlink_gbyte_per_s", "nvlink_bytes_per_s", 1e9, why=_BOTH_WAYS),
    _rate_rule("C807", "pcie_gbyte_per_s", "pcie_bytes_per_s", 1e9, why=_BOTH_WAYS),
    Rule(
        id="C808",
        key="cluster.memory_gib",
        needs="cluster",
        severity="warning",
        broken=lambda f: (
            f.config.cluster.memory_gib is not None
            and f.known_cluster.gpu.name in GPUS
            and f.config.cluster.memory_gib * GIB > _MEMORY_TOLERANCE * GPUS[f.known_cluster.gpu.name].memory_bytes
        ),
        message="memory_gib = {given} is more than the {usual} that a process has on {cluster.gpu.name}",
        fix="set it to {usual}, or leave it out",
        words=lambda f: {
            "given": f"{f.config.cluster.memory_gib:g}",
            "usual": f"{_memory_gib(f):g}",
        },
        edit=lambda f: {"cluster.memory_gib": _memory_gib(f)},
        why="a plan for memory that is not there ends in the first step, out of memory",
    ),
    Rule(
        id="C809",
        key="cluster.network_gbit_per_s_per_gpu",
        needs="cluster",
        severity="warning",
        broken=lambda f: (
            f.known_cluster.gpu.usual_network_gbit_per_s is not None
            and (f.config.cluster.network_gbit_per_s_per_gpu or 0.0)
            >= _OF_A_NODE * f.known_cluster.gpu.usual_network_gbit_per_s
        ),
        message="network_gbit_per_s_per_gpu = {given} is {times} the {usual} that one {cluster.gpu.name} usually has",
        fix="set it to {usual}, or leave it out; it is that of one GPU, not of its node",
        words=lambda f: {
            "given": f"{f.config.cluster.network_gbit_per_s_per_gpu:g}",
            "usual": f"{f.known_cluster.gpu.usual_network_gbit_per_s:g}",
            "times": _times(
                f.config.cluster.network_gbit_per_s_per_gpu or 0.0, f.known_cluster.gpu.usual_network_gbit_per_s or 1.0
            ),
        },
        edit=lambda f: {"cluster.network_gbit_per_s_per_gpu": f.known_cluster.gpu.usual_network_gbit_per_s},
        why="nodes are sold with the sum of their network cards, eight times what a GPU sends at once",
    ),
)


def _memory_gib(f: Facts) -> float:
    return round(GPUS[f.known_cluster.gpu.name].memory_bytes / GIB, 1)
