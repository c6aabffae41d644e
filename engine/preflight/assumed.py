"""What a plan assumes that GPUs and links reach, in the units in which they are measured.

Knows the planner's rates, which are the data sheets' or a calibration's. Does not measure.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.hardware import Cluster
from engine.planner.comms import group_of, links_of
from engine.planner.kernels import kernels_of
from engine.planner.mesh import Mesh
from engine.planner.stack import TITAN
from engine.preflight.rings import Kind

BF16, FP8, MEMORY, HOST = "bf16_tflops", "fp8_tflops", "memory_tbyte_per_s", "host_to_device_gbyte_per_s"
# A product as wide as those of large layers, on a GPU.
WIDTH = 8192


def rates(cluster: Cluster) -> dict[str, float]:
    """Rates of one GPU by name. A processor's are not known, and no plan counts on copies from the host."""
    kernels = kernels_of(cluster, TITAN) if cluster.gpu.name != "cpu" else None
    if kernels is None:
        return {}
    flops = 2 * WIDTH**3
    found = {
        BF16: 1e-12 * flops / kernels.matmul_s(WIDTH, WIDTH, WIDTH),
        MEMORY: 1e-12 / kernels.memory_s(1.0),
    }
    if kernels.fp8_flops_per_s is not None:
        found[FP8] = 1e-12 * flops / kernels.matmul_s(WIDTH, WIDTH, WIDTH, precision="float8")
    return found


def link_rates(cluster: Cluster, *, reduced_bytes: int) -> Mapping[Kind, float]:
    """GB/s that each GPU sends in an all-reduce of so many bytes, by the kind of group; without what is not known."""
    if cluster.gpu.name == "cpu":
        return {}
    local, nodes = cluster.gpus_per_node, cluster.nodes
    inside: dict[Kind, Mesh] = {"pair": _mesh(tp=2), "node": _mesh(tp=local)} if local > 1 else {}
    across: dict[Kind, Mesh] = {"nodes": _mesh(tp=local, dp_shard=2), "all": _mesh(tp=local * nodes)}
    found: dict[Kind, float] = {}
    for kind, mesh in (inside | (across if nodes > 1 else {})).items():
        group = group_of(mesh, "dp_shard" if kind == "nodes" else "tp", links_of(cluster))
        if group is not None:
            found[kind] = sent_gbyte_per_s(group.size, reduced_bytes, group.all_reduce_s(reduced_bytes))
    return found


def sent_gbyte_per_s(size: int, reduced_bytes: int, seconds: float) -> float:
    """What each of `size` ranks sends a second in an all-reduce: twice round a ring, less its own share."""
    return 2e-9 * (size - 1) / size * reduced_bytes / seconds


def _mesh(*, tp: int, dp_shard: int = 1) -> Mesh:
    return Mesh(pp=1, dp_replicate=1, dp_shard=dp_shard, cp=1, tp=tp)
