"""Seconds of one collective over a mesh axis, from its bytes and the links it runs over.

Knows which ranks of an axis share a node, what NVLink, PCIe and the network carry, and the algorithms of
NCCL. Does not know who sends what when (messages), nor what compute hides (timing).

Ranks are numbered with tensor parallel innermost, then context, shards, replicas and the pipeline outermost
(parallel/mesh.py); a node holds `gpus_per_node` neighbours. So the stride of an axis decides how many of its group
lie in one node, and each of these brings its own network card: NCCL lays one ring over each card. Groups that run
through the same node therefore do not slow each other: there is one card for each GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, log2
from typing import Literal, TypeAlias

from engine.hardware import Cluster
from engine.planner.mesh import Mesh

Axis: TypeAlias = Literal["tp", "cp", "dp_shard", "dp_replicate", "pp", "fsdp"]
"""A mesh axis; `fsdp` are dp_shard and cp as the one over which weights are sharded."""

# Bus bandwidth that nccl-tests reach with large messages: 330 to 360 of 450 GB/s on a node of H100 (ring all-gather and
# reduce-scatter; only all-reduce with NVLS comes to more), 230 to 240 of 300 GB/s on A100. Two H200 alone: 268 of 450
# (tests/bench/collectives_h200x2.json).
_NVLINK_SHARE, _PAIR_SHARE = 0.77, 0.6
# 40 to 43 of 50 GB/s a card (400 Gbit/s InfiniBand and RoCE), 20 to 21 of 25 GB/s: headers, and rails that are shared.
_NETWORK_SHARE = 0.83
# GPUs that NVLink joins beyond a node of the operating system: racks of 18 nodes of four.
_NVLINK_DOMAIN = {"gb200": 72}
# A PCIe switch or the processor carries both directions of all GPUs of a node: peer-to-peer copies reach this much.
_PCIE_SHARE = 0.6
# What a hidden collective costs the kernels beside it, as a share of its own seconds: NCCL's kernels hold
# multiprocessors that products want, whose last wave of tiles then takes longer. Two H200, products of the 8B model
# of 1.31 ms, and an all-gather of 1.11 ms: 1.72 ms for both. At the pace of a network card fewer channels work.
_CONTENTION = 0.4
# One step of a ring: NCCL's simple protocol inside of a node, and through network cards.
_NVLINK_HOP_S, _PCIE_HOP_S, _NETWORK_HOP_S = 2.5e-6, 5e-6, 12e-6
# NCCL's buffer of a channel, which fills before a ring over network cards is at its pace: nccl-tests on two nodes show
# half of it at 30 to 60 MB.
_BUFFER_BYTES = 4 << 20
# Start of a collective: a kernel, and the agreement of all ranks to have come.
_START_S = 15e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What one GPU sends and receives at once, in bytes a second; None: there is no such way, or it is unknown.

    `pairs_are_slower` where two GPUs alone do not reach it: over NVLink, unless that was measured.
    """

    node_bytes_per_s: float | None
    network_bytes_per_s: float | None
    gpus_per_node: int
    node_hop_s: float = _NVLINK_HOP_S
    pairs_are_slower: bool = False


@cache
def links_of(cluster: Cluster) -> Links:
    """The links of a cluster: NVLink inside of a node or of the rack that it joins, PCIe where there is none."""
    gpu, network = cluster.gpu, cluster.network_gbit_per_s_per_gpu
    measured, published, pcie = gpu.sustained_nvlink_bytes_per_s, gpu.nvlink_bytes_per_s, gpu.pcie_bytes_per_s
    inside = measured or (published and _NVLINK_SHARE * published) or (pcie and _PCIE_SHARE * pcie)
    return Links(
        node_bytes_per_s=inside,
        network_bytes_per_s=None if network is None else _NETWORK_SHARE * network * 1e9 / 8,
        gpus_per_node=max(cluster.gpus_per_node, _NVLINK_DOMAIN.get(gpu.name, 1)),
        node_hop_s=_NVLINK_HOP_S if measured or published else _PCIE_HOP_S,
        pairs_are_slower=measured is None and bool(published),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks of one axis: how many, how many of them in each node, and what each of them carries.

    `bytes_per_s` is the pace of a ring over all of them, `far_bytes_per_s` that of what one rank sends out of its
    node, `near_bytes_per_s` that of what stays in it.
    """

    size: int
    in_node: int
    bytes_per_s: float
    far_bytes_per_s: float
    near_bytes_per_s: float
    ring_s: float
    tree_s: float
    spans_nodes: bool
    start_s: float = _START_S

    def all_gather_s(self, whole_bytes: float) -> float:
        """Seconds until each rank has all of `whole_bytes`, of which it had its share. A ring: n - 1 steps."""
        if self.size == 1:
            return 0.0
        return self.start_s + self.ring_s + self._sending_s(whole_bytes)

    def reduce_scatter_s(self, whole_bytes: float) -> float:
        """Seconds until each rank has the sum of its share of `whole_bytes`: the same ring backwards."""
        return self.all_gather_s(whole_bytes)

    def all_reduce_s(self, whole_bytes: float) -> float:
        """Seconds until each rank has the sum of `whole_bytes`: a ring round twice, or a tree where latency counts."""
        if self.size == 1:
            return 0.0
        return self.start_s + 2 * min(self.ring_s, self.tree_s) + 2 * self._sending_s(whole_bytes)

    def _sending_s(self, whole_bytes: float) -> float:
        """Once round the ring."""
        filling = min(whole_bytes, self.in_node * _BUFFER_BYTES) if self.spans_nodes else 0.0
        return (whole_bytes * (self.size - 1) / self.size + filling) / self.bytes_per_s

    def contention(self, sent_bytes: float, sent_s: float) -> float:
        """What hidden collectives over `sent_bytes` still cost, as a share of the `sent_s` that they take.

        Kernels of theirs that wait for the network or for each other leave the memory and most multiprocessors alone:
        counted is what the bytes would take inside of a node.
        """
        if not sent_s:
            return 0.0
        return _CONTENTION * min(1.0, sent_bytes * (self.size - 1) / self.size / self.near_bytes_per_s / sent_s)

    def all_to_all_s(self, own_bytes: float) -> float:
        """Seconds until each rank has sent an equal piece of its `own_bytes` to each of the others.

        What goes to other nodes goes through the rank's own card, beside what stays in the node.
        """
        if self.size == 1:
            return 0.0
        piece = own_bytes / self.size
        near, far = (self.in_node - 1) * piece, (self.size - self.in_node) * piece
        return self.start_s + self.tree_s + max(near / self.bytes_per_s, far / self.far_bytes_per_s)

    def send_s(self, message_bytes: float) -> float:
        """Seconds of one message to the next rank of the group: out of the node, if the group spans several."""
        if self.size == 1:
            return 0.0
        hop_s = self.tree_s / max(1.0, ceil(log2(self.size)))
        return self.start_s + hop_s + message_bytes / self.far_bytes_per_s


@cache
def counting_group(size: int) -> Group:
    """A group over links of one byte a second where nothing else takes time: its seconds are the bytes a rank sends."""
    return Group(
        size=size,
        in_node=size,
        bytes_per_s=1.0,
        far_bytes_per_s=1.0,
        near_bytes_per_s=1.0,
        ring_s=0.0,
        tree_s=0.0,
        spans_nodes=False,
        start_s=0.0,
    )


@cache
def group_of(mesh: Mesh, axis: Axis, links: Links) -> Group | None:
    """The group of an axis; None where it needs a link of which nothing is known."""
    size, stride = size_and_stride(mesh, axis)
    in_node = max(1, min(size, links.gpus_per_node // stride))
    nodes = -(-size // in_node)
    inside, network = links.node_bytes_per_s, links.network_bytes_per_s
    if size > 1 and ((in_node > 1 and inside is None) or (nodes > 1 and network is None)):
        return None
    near = inside or network or 1.0
    if size == 2 and nodes == 1 and links.pairs_are_slower:
        near *= _PAIR_SHARE / _NVLINK_SHARE
    far = near if nodes == 1 or network is None else network
    ring_s = nodes * (in_node - 1) * links.node_hop_s + (nodes - 1) * _NETWORK_HOP_S
    tree_s = (in_node - 1) * links.node_hop_s + ceil(log2(nodes)) * _NETWORK_HOP_S
    pace = near if nodes == 1 else far if in_node == 1 else min(near, in_node * far)
    return Group(
        size=size,
        in_node=in_node,
        bytes_per_s=pace,
        far_bytes_per_s=far,
        near_bytes_per_s=near,
        ring_s=ring_s,
        tree_s=tree_s,
        spans_nodes=nodes > 1,
    )


def size_and_stride(mesh: Mesh, axis: Axis) -> tuple[int, int]:
    """Ranks of a group of the axis, and how far apart neighbours are in the order of ranks."""
    match axis:
        case "tp":
            return mesh.tp, 1
        case "cp":
            return mesh.cp, mesh.tp
        case "fsdp":
            return mesh.fsdp, mesh.tp
        case "dp_shard":
            return mesh.dp_shard, mesh.tp * mesh.cp
        case "dp_replicate":
            return mesh.dp_replicate, mesh.tp * mesh.fsdp
        case "pp":
            return mesh.pp, mesh.tp * mesh.fsdp * mesh.dp_replicate
