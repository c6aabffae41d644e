"""Seconds of collectives by axis, link and size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.hardware import GPUS, Cluster
from engine.planner.comms import Axis, Group, counting_group, group_of, links_of
from engine.planner.mesh import Mesh

MIB = 1 << 20
H100 = Cluster(gpu=GPUS["h100-80"], nodes=64, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)
MESH_3D = Mesh(pp=8, dp_replicate=1, dp_shard=8, cp=1, tp=8)


def group(mesh: Mesh, axis: Axis, cluster: Cluster = H100) -> Group:
    """A group whose links are all known."""
    found = group_of(mesh, axis, links_of(cluster))
    assert found is not None
    return found


def flat(shards: int, **axes: int) -> Mesh:
    """A mesh of so many shards."""
    return Mesh(**({"pp": 1, "dp_replicate": 1, "dp_shard": shards, "cp": 1, "tp": 1} | axes))


def test_neighbours_in_a_node_send_over_nvlink_and_the_rest_over_network_cards() -> None:
    paces = {axis: group(MESH_3D, axis).bytes_per_s for axis in ("tp", "fsdp", "pp")}
    assert paces["tp"] == pytest.approx(0.77 * 450e9)
    assert paces["fsdp"] == paces["pp"] == pytest.approx(0.83 * 50e9)


def test_ranks_of_a_group_in_one_node_each_bring_their_card() -> None:
    assert group(flat(64, tp=4), "fsdp").bytes_per_s == pytest.approx(2 * 0.83 * 50e9)
    assert group(flat(64), "fsdp").bytes_per_s == pytest.approx(min(0.77 * 450e9, 8 * 0.83 * 50e9))


def test_an_axis_outside_of_another_takes_its_stride() -> None:
    mesh = Mesh(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=4)
    in_node = {axis: group(mesh, axis).in_node for axis in ("tp", "cp", "dp_shard", "fsdp", "dp_replicate", "pp")}
    assert in_node == {"tp": 4, "cp": 2, "dp_shard": 1, "fsdp": 2, "dp_replicate": 1, "pp": 1}


def test_a_ring_sends_all_but_its_own_share() -> None:
    tp = group(MESH_3D, "tp")
    half = tp.all_gather_s(1024 * MIB) - tp.all_gather_s(512 * MIB)
    assert half == pytest.approx(512 * MIB * 7 / 8 / tp.bytes_per_s)
    assert tp.reduce_scatter_s(MIB) == tp.all_gather_s(MIB)


def test_a_large_all_reduce_is_two_rounds_and_a_small_one_a_tree() -> None:
    wide = group(flat(512), "fsdp")
    assert wide.all_reduce_s(65536 * MIB) == pytest.approx(2 * wide.all_gather_s(65536 * MIB), rel=0.01)
    assert wide.all_reduce_s(1024) < wide.all_gather_s(1024)


def test_tensor_parallel_over_two_nodes_is_slower_by_the_ratio_of_the_links() -> None:
    a100 = replace(H100, gpu=GPUS["a100-80"], network_gbit_per_s_per_gpu=200.0)
    inside, across = (group(flat(1, tp=size), "tp", a100).all_reduce_s(64 * MIB) for size in (8, 16))
    assert 1.3 * inside < across
    assert group(flat(1, tp=16), "tp", a100).bytes_per_s == pytest.approx(8 * 0.83 * 25e9)


def test_two_gpus_alone_do_not_reach_the_pace_of_a_node() -> None:
    pair = group(flat(1, tp=2), "tp")
    assert pair.bytes_per_s == pytest.approx(0.6 * 450e9)
    # Two H200, 1 GiB in bfloat16: 2.01 ms (tests/bench/collectives_h200x2.json).
    assert pair.all_gather_s(1024 * MIB) == pytest.approx(2.01e-3, rel=0.02)


def test_what_was_measured_stands_before_what_is_usual() -> None:
    measured = replace(H100, gpu=replace(H100.gpu, sustained_nvlink_bytes_per_s=300e9))
    assert group(flat(1, tp=2), "tp", measured).bytes_per_s == 300e9


def test_without_nvlink_pcie_carries_a_node() -> None:
    cards = replace(H100, gpu=replace(H100.gpu, nvlink_bytes_per_s=None))
    assert group(MESH_3D, "tp", cards).bytes_per_s == pytest.approx(0.6 * 64e9)


def test_a_group_over_an_unknown_link_is_none_and_one_without_messages_is_not() -> None:
    alone = replace(H100, network_gbit_per_s_per_gpu=None)
    assert group_of(MESH_3D, "fsdp", links_of(alone)) is None
    assert group_of(MESH_3D, "tp", links_of(alone)) is not None
    assert (
        group_of(flat(1), "fsdp", links_of(replace(alone, gpu=replace(H100.gpu, nvlink_bytes_per_s=None)))) is not None
    )


def test_a_group_of_one_sends_nothing() -> None:
    one = group(flat(512), "tp")
    assert (one.all_gather_s(MIB), one.all_reduce_s(MIB), one.all_to_all_s(MIB), one.send_s(MIB)) == (0, 0, 0, 0)


def test_an_exchange_of_pieces_waits_for_what_leaves_the_node() -> None:
    inside, across = group(flat(1, cp=8), "cp"), group(flat(1, cp=16), "cp")
    assert across.all_to_all_s(256 * MIB) > 3 * inside.all_to_all_s(256 * MIB)


def test_a_message_along_the_pipeline_takes_the_card_of_its_rank() -> None:
    assert group(MESH_3D, "pp").send_s(128 * MIB) == pytest.approx(128 * MIB / (0.83 * 50e9), rel=0.02)


def test_what_is_hidden_costs_the_less_the_slower_the_link() -> None:
    shares = [group(MESH_3D, axis) for axis in ("fsdp", "tp")]
    far, near = (each.contention(64 * MIB, each.all_gather_s(64 * MIB)) for each in shares)
    assert far < 0.1 < 0.3 < near < 0.4


def test_what_is_hidden_costs_as_much_at_any_pace_of_the_network() -> None:
    costs = []
    for gbit_per_s in (100.0, 400.0, 1600.0):
        found = group(flat(2, tp=8), "fsdp", replace(H100, network_gbit_per_s_per_gpu=gbit_per_s))
        sent_s = found.all_gather_s(64 * MIB)
        costs.append(sent_s * found.contention(64 * MIB, sent_s))
    assert costs == pytest.approx([costs[0]] * 3)


def test_what_is_not_sent_costs_nothing() -> None:
    assert group(MESH_3D, "fsdp").contention(0.0, 0.0) == 0.0


def test_seconds_over_one_byte_a_second_are_the_bytes_that_a_rank_sends() -> None:
    four = counting_group(4)
    found = (four.all_gather_s(400), four.reduce_scatter_s(400), four.all_reduce_s(400), four.all_to_all_s(400))
    assert (*found, four.send_s(400)) == (300, 300, 600, 300, 400)
